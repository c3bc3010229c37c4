// Sends each request when it is due, regardless of the ones before it, and counts
// errors and late sends.
import http from 'k6/http';
import exec from 'k6/execution';
import { Counter, Rate, Trend } from 'k6/metrics';
import { SharedArray } from 'k6/data';
import { sleep } from 'k6';
import { body, schedule } from './schedule.js';
import { integer, number, target, text } from './settings.js';
import { summarize, tagsOf, trendStats } from './summary.js';

const sent = new Counter('sent_requests');
const failed = new Rate('failed_requests');
const wrong = new Rate('wrong_answers');
const late = new Rate('late_sends');
const lateBy = new Trend('late_ms');
const response = new Trend('response_ms'); // of right answers, measured from the send

// The first requests are due this much after the start, when all of k6 is up.
const leadMs = 1000;

// difference says how an answer differs from expect; empty if it does not.
function difference(answer, expect) {
  return Object.keys(expect)
    .filter((key) => answer.did[key] !== expect[key])
    .map((key) => `${key} is ${answer.did[key]}, not ${expect[key]}`)
    .join('; ');
}

// judge says whether a response is an answer, and a right one, and if not, why.
function judge(r, expect) {
  if (r.status !== 200) {
    return { failed: true, error: r.error || `status ${r.status}: ${String(r.body).slice(0, 200)}` };
  }
  if (!expect) return {};
  try {
    // r.json() would shuffle the keys.
    const answer = JSON.parse(r.body);
    const error = difference(answer, expect);
    return { answer, error, wrong: error !== '' };
  } catch (e) {
    return { error: `the answer is not that of a function: ${e}`, wrong: true };
  }
}

// load returns what a k6 script exports. It takes
//   name     the script's name
//   count    the number of requests
//   request  maps a number below count to { entry, atMs, part }: an entry of the
//            schedule, when it is due (undefined: when the one before ended), and
//            the part of the run that it counts in (1 to parts, or none)
//   parts    the number of parts
//   vus      how many requests can be in flight
//   more     maps the parts' summaries to more fields of the summary
export function load({ name, count, request, parts = 0, vus, more }) {
  const where = target();
  const timeoutS = integer('TIMEOUT_S', 60, 1, 600);
  const lateMs = number('LATE_MS', 50, 1, 60000);
  const maxLate = number('MAX_LATE', 0.01, 0, 1);
  const inFlight = Math.min(integer('VUS', vus, 1, 5000), count);
  const run = text('RUN', name);
  const lines = __ENV.REQUEST_LINES === '1';
  const last = request(count - 1).atMs;
  const lastMs = last === undefined ? count * timeoutS * 1000 : last;
  // SharedArray computes this once, not once per virtual user.
  const groups = new SharedArray('groups', () => tagsOf(schedule, parts));
  // A wrong address should show before the first request.
  groups.filter((g) => g.function).forEach((g) => where(g.function));

  const options = {
    scenarios: {
      [name]: {
        executor: 'shared-iterations',
        vus: inFlight,
        iterations: count,
        maxDuration: `${Math.ceil((leadMs + lastMs) / 1000) + timeoutS + 30}s`,
      },
    },
    summaryTrendStats: trendStats,
    thresholds: {
      sent_requests: [`count>=${count}`],
      failed_requests: ['rate==0'],
      wrong_answers: ['rate==0'],
      late_sends: [`rate<=${maxLate}`],
    },
  };
  // k6 keeps separate results only for tags that a threshold names.
  for (const { selector } of groups) {
    for (const metric of ['failed_requests', 'wrong_answers', 'late_sends']) {
      options.thresholds[`${metric}{${selector}}`] = ['rate>=0'];
    }
    options.thresholds[`response_ms{${selector}}`] = ['max>=0'];
  }

  async function send() {
    const { entry, atMs, part } = request(exec.scenario.iterationInTest);
    const bytes = await body(entry);
    const { url, host } = where(entry.function);
    const tags = { function: entry.function, size_class: entry.size_class || 'none', name: entry.function };
    if (part) tags.part = String(part);
    const headers = {
      'Content-Type': 'application/octet-stream',
      'X-Request-Id': `${run}-${exec.scenario.iterationInTest}`,
    };
    if (host) headers.Host = host;

    let due = Date.now();
    if (atMs !== undefined) {
      due = exec.scenario.startTime + leadMs + atMs;
      sleep(Math.max(0, due - Date.now()) / 1000);
    }
    const lateness = Math.max(0, Date.now() - due);
    const r = http.post(url, bytes, { headers, tags, timeout: `${timeoutS}s`, redirects: 0 });
    const verdict = judge(r, entry.expect);

    sent.add(1, tags);
    late.add(lateness > lateMs, tags);
    lateBy.add(lateness, tags);
    failed.add(verdict.failed === true, tags);
    wrong.add(verdict.wrong === true, tags);
    if (!verdict.error) response.add(r.timings.duration, tags);
    if (!lines) {
      if (verdict.error) console.error(`request ${headers['X-Request-Id']} to ${entry.function}: ${verdict.error}`);
      return;
    }
    const answer = verdict.answer || {};
    console.log(
      JSON.stringify({
        n: exec.scenario.iterationInTest,
        function: entry.function,
        size: entry.size,
        size_class: tags.size_class,
        input: entry.input,
        // The ID that the function saw: a gateway may replace the client's.
        request_id: answer.request_id || '',
        status: r.status,
        duration_ms: r.timings.duration,
        sent_ms: due + lateness,
        late_ms: lateness,
        answer: JSON.stringify(answer.did || null),
        error: verdict.error || '',
      }),
    );
  }

  function summary(data) {
    const facts = { script: name, run, gateway: text('GATEWAY'), schedule: text('SCHEDULE'), planned: count, late_limit_ms: lateMs };
    const { json, table } = summarize(data, facts, groups, more);
    return { [text('SUMMARY', `${name}-summary.json`)]: json, stdout: table };
  }
  return { options, send, summary };
}
