// Sends each function of a schedule its smallest request, one after the other:
// is everything there, reachable and right? docs/loadtest.md lists the variables.
import { SharedArray } from 'k6/data';
import { load } from './lib/load.js';
import { schedule } from './lib/schedule.js';

const smallest = new SharedArray('smallest', () => {
  const byFunction = {};
  for (const entry of schedule) {
    const s = byFunction[entry.function];
    if (!s || entry.size < s.size) byFunction[entry.function] = entry;
  }
  return Object.values(byFunction);
});

const test = load({
  name: 'smoke',
  count: smallest.length,
  request: (i) => ({ entry: smallest[i] }),
  vus: 1,
});

export const options = test.options;
export const handleSummary = test.summary;
export default test.send;
