// Replays a schedule as an open loop: sends each request when it is due,
// regardless of the ones before it. docs/loadtest.md lists the variables.
import { load } from './lib/load.js';
import { schedule } from './lib/schedule.js';

const test = load({
  name: 'replay',
  count: schedule.length,
  request: (i) => ({ entry: schedule[i], atMs: schedule[i].at_ms }),
  // A request beyond these in flight is sent late, and counts as late.
  vus: 64,
});

export const options = test.options;
export const handleSummary = test.summary;
export default test.send;
