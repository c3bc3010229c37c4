// Sends BURSTS bursts of SIZE requests at once, one burst every EVERY, and
// nothing in between. Requests are in the schedule's order, and start over at
// its end. docs/loadtest.md lists the variables.
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
  // The previous burst may still be in flight when the next one is due.
  vus: 2 * size,
});

export const options = test.options;
export const handleSummary = test.summary;
export default test.send;
