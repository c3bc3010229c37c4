// The schedule and the inputs, shared by all of k6's virtual users.
import { SharedArray } from 'k6/data';
import { open as openShared, SeekMode } from 'k6/experimental/fs';
import { path } from './settings.js';

function read() {
  const name = path('SCHEDULE');
  let entries;
  try {
    entries = JSON.parse(open(name));
  } catch (e) {
    throw new Error(`SCHEDULE ${name}: ${e}; it must be a schedule as "trace schedule" writes it`);
  }
  if (!Array.isArray(entries) || entries.length === 0) {
    throw new Error(`SCHEDULE ${name} must be a list of at least one request, as "trace schedule" writes it`);
  }
  let last = 0;
  entries.forEach((e, i) => {
    const wrong = (field, accepted) => {
      throw new Error(`SCHEDULE ${name}, request ${i}: ${field} is ${JSON.stringify(e[field])}; it must be ${accepted}`);
    };
    // The names become parts of threshold names.
    if (!/^[A-Za-z0-9._-]+$/.test(e.function || '')) wrong('function', 'a name of letters, digits, dots and dashes');
    if (!/^[a-z]*$/.test(e.size_class || '')) wrong('size_class', 'a word in lower case');
    if (!(e.at_ms >= last)) wrong('at_ms', `a number of milliseconds, ${last} or more: requests must be in the order of their times`);
    if (!e.body && !(e.size >= 0)) wrong('size', 'a number of bytes, unless the request has a body');
    if (!e.body && e.size > 0 && !__ENV.CORPUS) {
      throw new Error(`CORPUS is not set, but the input of request ${i} is in that file: name the file that "trace schedule" wrote beside the schedule`);
    }
    last = e.at_ms;
  });
  return entries;
}

export const schedule = new SharedArray('schedule', read);

const corpus = __ENV.CORPUS ? await openCorpus(path('CORPUS')) : null;

async function openCorpus(name) {
  try {
    return await openShared(name);
  } catch (e) {
    throw new Error(`CORPUS ${name}: ${e}; it must be the file that "trace schedule" writes beside the schedule`);
  }
}

// body returns the payload of a request.
export async function body(entry) {
  if (entry.body || entry.size === 0) return entry.body || '';
  const bytes = new Uint8Array(entry.size);
  await corpus.seek(entry.offset || 0, SeekMode.Start);
  if ((await corpus.read(bytes)) !== entry.size) {
    throw new Error(`CORPUS lacks the input of request ${entry.n}, ${entry.size} bytes at ${entry.offset || 0}: CORPUS belongs to another schedule`);
  }
  return bytes.buffer;
}
