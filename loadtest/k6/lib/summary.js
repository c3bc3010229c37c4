// Summarizes a run: JSON for programs, a table for people.

export const trendStats = ['count', 'min', 'avg', 'med', 'p(90)', 'p(99)', 'max'];

// tagsOf lists the tags by which results are split: function, function and size
// class, and the part of the run.
export function tagsOf(schedule, parts) {
  const classes = new Map();
  for (let i = 0; i < schedule.length; i++) {
    const { function: name, size_class: sizeClass } = schedule[i];
    if (!classes.has(name)) classes.set(name, new Set());
    classes.get(name).add(sizeClass || 'none');
  }
  const tags = [];
  for (const name of [...classes.keys()].sort()) {
    tags.push({ function: name, selector: `function:${name}` });
    for (const sizeClass of [...classes.get(name)].sort()) {
      tags.push({ function: name, sizeClass, selector: `function:${name},size_class:${sizeClass}` });
    }
  }
  for (let part = 1; part <= parts; part++) tags.push({ part, selector: `part:${part}` });
  return tags;
}

// figures returns the results that match selector, or all of them without one.
function figures(metrics, selector) {
  const values = (name) => (metrics[selector ? `${name}{${selector}}` : name] || { values: {} }).values;
  const of = (name) => values(name).passes || 0;
  const failed = values('failed_requests');
  const t = values('response_ms');
  const figures = {
    sent: (failed.passes || 0) + (failed.fails || 0),
    failed: of('failed_requests'),
    wrong: of('wrong_answers'),
    late: of('late_sends'),
    response_ms: null,
  };
  if (t.count > 0) {
    figures.response_ms = { count: t.count, min: t.min, mean: t.avg, p50: t.med, p90: t['p(90)'], p99: t['p(99)'], max: t.max };
  }
  return figures;
}

export function summarize(data, facts, groups, more) {
  const all = figures(data.metrics);
  const lateness = (data.metrics.late_ms || { values: {} }).values;
  const broken = [];
  for (const [name, metric] of Object.entries(data.metrics)) {
    for (const [rule, { ok }] of Object.entries(metric.thresholds || {})) {
      if (!ok) broken.push(`${name} ${rule}`);
    }
  }
  const s = {
    ...facts,
    passed: broken.length === 0,
    broken,
    unsent: facts.planned - all.sent,
    ...all,
    late_ms: { p50: lateness.med || 0, p99: lateness['p(99)'] || 0, max: lateness.max || 0 },
    functions: {},
  };
  const parts = [];
  for (const t of groups) {
    const f = figures(data.metrics, t.selector);
    if (t.part) parts.push({ part: t.part, ...f });
    else if (!t.sizeClass) s.functions[t.function] = { ...f, size_classes: {} };
    else s.functions[t.function].size_classes[t.sizeClass] = f;
  }
  if (parts.length > 0) s.parts = parts;
  if (more) Object.assign(s, more(parts));
  return { json: `${JSON.stringify(s, null, 2)}\n`, table: table(s) };
}

function table(s) {
  const ms = (v) => (v === undefined ? '-' : v.toFixed(v < 10 ? 1 : 0));
  const line = (name, sizeClass, f) => {
    const t = f.response_ms || {};
    const cells = [f.sent, f.failed, f.wrong, f.late, ms(t.p50), ms(t.p99), ms(t.max)];
    return name.padEnd(22) + sizeClass.padEnd(8) + cells.map((c) => String(c).padStart(8)).join('');
  };
  const rows = [''.padEnd(30) + ['sent', 'failed', 'wrong', 'late', 'p50 ms', 'p99 ms', 'max ms'].map((c) => c.padStart(8)).join('')];
  for (const [name, f] of Object.entries(s.functions)) {
    rows.push(line(name, 'all', f));
    for (const [sizeClass, of] of Object.entries(f.size_classes)) rows.push(line('', sizeClass, of));
  }
  for (const p of s.parts || []) rows.push(line(`part ${p.part}`, '', p));
  rows.push(line('all', '', s), '');
  rows.push(
    `${s.script}: ${s.sent} of ${s.planned} requests sent, ${s.late} of them more than ${s.late_limit_ms} ms late ` +
      `(at most ${ms(s.late_ms.max)} ms); ${s.failed} failed, ${s.wrong} answered wrongly`,
    s.passed ? 'passed' : `NOT passed: ${s.broken.join(', ')}`,
  );
  return `${rows.join('\n')}\n`;
}
