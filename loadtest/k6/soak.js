// Replays a schedule over and over for DURATION, and compares the response times
// of the last rounds with those of the first, which shows leaks, drift and anything
// that fills up. docs/loadtest.md lists the variables.
import { SharedArray } from 'k6/data';
import { load } from './lib/load.js';
import { schedule } from './lib/schedule.js';
import { milliseconds } from './lib/settings.js';

const quarters = 4;
const durationMs = milliseconds('DURATION', '30m');
const n = schedule.length;
// A round ends one mean interval after its last request.
const roundMs = Math.max(1000, Math.ceil((schedule[n - 1].at_ms * n) / Math.max(1, n - 1)));
const [inLast] = new SharedArray('the last round', () => [
  schedule.filter((entry) => entry.at_ms < durationMs % roundMs).length,
]);
const rounds = Math.floor(durationMs / roundMs);
const count = rounds * n + inLast;
if (count === 0) {
  throw new Error(`DURATION is too short: the first request of the schedule is due after ${schedule[0].at_ms} ms`);
}
// Only whole rounds have the same requests in them.
const roundsInQuarter = Math.floor(rounds / quarters);

const test = load({
  name: 'soak',
  count,
  request: (i) => {
    const entry = schedule[i % n];
    const round = Math.floor(i / n);
    const quarter = 1 + Math.floor(round / roundsInQuarter);
    return { entry, atMs: round * roundMs + entry.at_ms, part: quarter <= quarters ? quarter : undefined };
  },
  parts: roundsInQuarter > 0 ? quarters : 0,
  vus: 64,
  more: (parts) => {
    const [first, last] = [parts[0]?.response_ms, parts[quarters - 1]?.response_ms];
    return { drift: first && last ? { p50: last.p50 / first.p50, p99: last.p99 / first.p99 } : null };
  },
});

export const options = test.options;
export const handleSummary = test.summary;
export default test.send;
