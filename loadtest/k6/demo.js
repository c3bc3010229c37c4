// Replays a schedule as an open loop: each request is sent when it is due,
// whatever became of those before it. Writes one JSON line per request to the
// console (send it to a file with --console-output and --log-format raw).
//
//   SCHEDULE  path of the requests, made by loadtest/demo
//   CORPUS    path of the text that bodies are cut from
//   GATEWAY   URL of the ingress, e.g. http://10.0.0.7
//   HOSTS     JSON object from function to Host header
//   RUN       name of the run: the request IDs are <RUN>-<n>
import http from 'k6/http';
import exec from 'k6/execution';
import { SharedArray } from 'k6/data';
import { sleep } from 'k6';

const schedule = new SharedArray('schedule', () => JSON.parse(open(__ENV.SCHEDULE)));
const corpus = open(__ENV.CORPUS, 'b');
const hosts = JSON.parse(__ENV.HOSTS);

// The first requests are due when all of k6 is up.
const leadMs = 1000;
const lastMs = schedule[schedule.length - 1].at_ms;

export const options = {
  scenarios: {
    replay: {
      executor: 'shared-iterations',
      // As many requests can be in flight; one more would be sent late.
      vus: Math.min(24, schedule.length),
      iterations: schedule.length,
      maxDuration: `${Math.ceil((leadMs + lastMs) / 1000) + 60}s`,
    },
  },
};

// wrong says what of the answer is not as the schedule expects it, or nothing.
function wrong(answer, expect) {
  return Object.keys(expect)
    .filter((key) => answer.did[key] !== expect[key])
    .map((key) => `${key} is ${answer.did[key]}, not ${expect[key]}`)
    .join('; ');
}

export default function () {
  const r = schedule[exec.scenario.iterationInTest];
  const body = r.body || corpus.slice(r.offset || 0, (r.offset || 0) + r.size);
  const due = exec.scenario.startTime + leadMs + r.at_ms;
  sleep(Math.max(0, due - Date.now()) / 1000);

  const lateMs = Date.now() - due;
  const response = http.post(`${__ENV.GATEWAY}/`, body, {
    headers: {
      Host: hosts[r.function],
      'Content-Type': 'application/octet-stream',
      'X-Request-Id': `${__ENV.RUN}-${r.n}`,
    },
    timeout: '50s',
  });

  let answer = {};
  let error = response.error;
  if (response.status === 200) {
    try {
      // response.json() would shuffle the keys.
      answer = JSON.parse(response.body);
      error = wrong(answer, r.expect);
    } catch (e) {
      error = `the answer is not what a function says: ${e}`;
    }
  } else if (!error) {
    error = `status ${response.status}: ${String(response.body).slice(0, 200)}`;
  }
  console.log(
    JSON.stringify({
      n: r.n,
      function: r.function,
      size: r.size,
      // As the function saw it: a gateway may replace the client's.
      request_id: answer.request_id || '',
      status: response.status,
      duration_ms: response.timings.duration,
      sent_ms: due + lateMs,
      late_ms: lateMs,
      answer: JSON.stringify(answer.did || null),
      error: error || '',
    }),
  );
}
