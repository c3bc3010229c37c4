// Replays a schedule as an open loop: each request is sent when it is due,
// whatever became of those before it. docs/loadtest.md lists the variables.
import { load } from './lib/load.js';
import { schedule } from './lib/schedule.js';

const test = load({
  name: 'replay',
  count: schedule.length,
  request: (i) => ({ entry: schedule[i], atMs: schedule[i].at_ms }),
  // One more request in flight would be sent late, and counted so.
  vus: 64,
});

export const options = test.options;
export const handleSummary = test.summary;
export default test.send;
