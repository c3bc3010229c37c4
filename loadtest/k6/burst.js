// Sends BURSTS times SIZE requests at the same moment, EVERY so often, and
// nothing in between: the first requests of a schedule, in its order, again from
// its start when it is over. docs/loadtest.md lists the variables.
import { load } from './lib/load.js';
import { schedule } from './lib/schedule.js';
import { integer, milliseconds } from './lib/settings.js';

const bursts = integer('BURSTS', 5, 1, 1000);
const size = integer('SIZE', 20, 1, 1000);
const everyMs = milliseconds('EVERY', '15s');

const test = load({
  name: 'burst',
  count: bursts * size,
  request: (i) => {
    const burst = Math.floor(i / size);
    return { entry: schedule[i % schedule.length], atMs: burst * everyMs, part: burst + 1 };
  },
  parts: bursts,
  // The next burst is due while the last one may still be answered.
  vus: 2 * size,
});

export const options = test.options;
export const handleSummary = test.summary;
export default test.send;
