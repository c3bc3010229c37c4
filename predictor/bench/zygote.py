"""A warmed process of one function. For each call it forks, and measures the child as the node agent would.

Run as `python -m bench.zygote FUNCTION`: reads the path of a body from each line of its input, and writes a
line of JSON about the call. The first body warms it: that call imports and fills caches, and is not reported.
"""

import json
import os
import select
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.workloads import WORKLOADS, Workload, storage

# As in resizer/agent/measure.go, so that what is measured here means what is learned from in a cluster.
PEAK_WINDOW_NS = 100_000_000
SHORTEST_NS = 25_000_000

_SAMPLE_EVERY_SECONDS = 0.004
_LONGEST_READING_NS = 50_000  # of a clock and a counter together; a longer one was interrupted
_CALL_SECONDS = 60.0
_KI = 1 << 10


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of the CPU counter, which was made between two readings of the clock."""

    after_ns: int
    before_ns: int
    cpu_ns: int  # all threads, since the process began


@dataclass(frozen=True, slots=True)
class Call:
    """A measured call."""

    size: int  # bytes of the body
    duration_ns: int
    cpu_time_ns: int
    cpu_milli: int  # peak over any 100 ms
    memory_bytes: int  # high-water mark of the resident set
    answer: int


def peak_cpu_milli(readings: list[Reading]) -> int:
    """The most CPU used in any 100 ms between the first reading and the last.

    Of a call that is shorter it is the use over all of it, but over 25 ms at least.
    """
    first, last = readings[0], readings[-1]
    length = _length(first, last)
    if length <= PEAK_WINDOW_NS:
        return _milli(last.cpu_ns - first.cpu_ns, max(length, SHORTEST_NS))
    # The shortest time from each reading to another that is not less than the window.
    peak, end = 0, 0
    for start in readings:
        while end < len(readings) and _length(start, readings[end]) < PEAK_WINDOW_NS:
            end += 1
        if end == len(readings):
            break
        peak = max(peak, _milli(readings[end].cpu_ns - start.cpu_ns, _length(start, readings[end])))
    return peak


def _length(start: Reading, end: Reading) -> int:
    """Not less than the time between them, so that one thread is never seen to use more than one CPU."""
    return end.before_ns - start.after_ns


def _milli(used_ns: float, in_ns: int) -> int:
    return int(used_ns * 1000 / in_ns + 0.5)


def measure(workload: Workload, body: Path) -> Call:
    """Runs the function on the body in a child. RuntimeError when it fails or does not end."""
    told, tell = os.pipe()
    wait, release = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(release)
        _call(workload, body, tell, wait)
    os.close(tell)
    os.close(wait)
    # The clock of another process's CPU use, all its threads together: see clock_getcpuclockid(3).
    clock = (~pid << 3) | 2
    readings: list[Reading] = []
    threads = 1
    deadline = time.monotonic() + _CALL_SECONDS
    try:
        while not select.select([told], [], [], _SAMPLE_EVERY_SECONDS)[0]:
            before = time.monotonic_ns()
            used = time.clock_gettime_ns(clock)
            after = time.monotonic_ns()
            if after - before <= _LONGEST_READING_NS:
                readings.append(Reading(before, after, used))
            threads = max(threads, len(os.listdir(f"/proc/{pid}/task")))
            if time.monotonic() > deadline:
                raise RuntimeError(f"{workload.name} on {body} did not end within {_CALL_SECONDS:.0f} s")
        report = os.read(told, 65536)
        memory = _high_water_bytes(pid) if report else 0
    except BaseException:
        os.kill(pid, 9)
        raise
    finally:
        os.close(told)
        os.close(release)
        _, status = os.waitpid(pid, 0)
    if status != 0 or not report:
        raise RuntimeError(f"{workload.name} on {body} failed: see its traceback above")
    began, began_cpu, ended, ended_cpu, size, answer = json.loads(report)
    within = [r for r in readings if began < r.after_ns and r.before_ns < ended]
    return Call(
        size=size,
        duration_ns=ended - began,
        cpu_time_ns=ended_cpu - began_cpu,
        # The kernel brings another process's counter up to date at ticks, which is 4 ms late at worst: over
        # 100 ms that looks like as much as 1040m of one thread.
        cpu_milli=min(
            1000 * threads,
            peak_cpu_milli([Reading(began, began, began_cpu), *within, Reading(ended, ended, ended_cpu)]),
        ),
        memory_bytes=memory,
        answer=answer,
    )


def _call(workload: Workload, body: Path, tell: int, wait: int) -> None:
    """The child: it stays until its parent has read what it used."""
    try:
        began, began_cpu = time.monotonic_ns(), time.process_time_ns()
        request = body.read_bytes()
        answer = workload.run(request)
        ended_cpu, ended = time.process_time_ns(), time.monotonic_ns()
        os.write(tell, json.dumps([began, began_cpu, ended, ended_cpu, len(request), answer]).encode())
        os.read(wait, 1)
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(1)


def _high_water_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * _KI
    raise RuntimeError(f"/proc/{pid}/status has no VmHWM")


def main() -> None:
    workload = WORKLOADS[sys.argv[1]]
    os.environ[storage.ADDRESS] = str(storage.serve())
    workload.run(Path(sys.stdin.readline().rstrip("\n")).read_bytes())
    sys.stdout.write("\n")
    sys.stdout.flush()
    for line in sys.stdin:
        call = measure(workload, Path(line.rstrip("\n")))
        sys.stdout.write(json.dumps(asdict(call)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
