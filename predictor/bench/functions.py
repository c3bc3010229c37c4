"""python -m bench.functions: the cost of many functions for the shipped Redis and the shipped predictor."""

import argparse
import http.client
import json
import math
import random
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import redis
import yaml

from bench import machine, report
from bench.calls import Calls, NotMeasuredError, measured
from bench.goals import DOES_NOT_HOLD, Goal
from bench.heldout import ALLOCATION
from bench.learner import Learner, sample
from bench.processes import ROOT, Predictor, asked, can_pin, predictor, redis_server
from bench.report import to_output
from bench.serving import infer_body, observation
from bench.workloads import WORKLOADS
from libra_predictor.function import FunctionState
from libra_predictor.observations import STREAM, VERSION
from libra_predictor.store import FUNCTIONS, VERSIONS, packed
from libra_predictor.stream import GROUP

_MIB = 1 << 20
_SEED, _PER_FUNCTION = 1, 260  # of the calls that python -m bench keeps
_OBSERVATIONS = 20_000  # that Redis keeps: observationsLength of pkg/pool
_PAGE = 500
_WAIT_SECONDS = 300.0
_RATE, _RATE_SECONDS = 200, 30  # observations per second, after these
_POOLS_MIB = 117, 195  # of data and in all, which 2,000 nodes take of the same Redis: make bench-pool
_LIVENESS_SECONDS = 5  # for which the kubelet waits for an answer: the InferenceService's livenessProbe


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.functions",
        description="Measures what learned functions cost Redis and the predictor, as they ship. It takes two"
        " cores for about five minutes, and longer the first time, to run the functions.",
    )
    parser.add_argument("--functions", type=int, default=10_000, help="default: 10000")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "out" / "bench-predictor", help="default: out/bench-predictor"
    )
    return parser.parse_args(arguments)


def _container(manifest: str, *parts: str) -> dict[str, Any]:
    """The first container of a manifest that ships."""
    found: Any = yaml.safe_load((ROOT / "manifests" / "base" / manifest).read_text())
    for part in parts:
        found = found[part]
    container: dict[str, Any] = found["containers"][0]
    return container


def _mib(quantity: str) -> float:
    number, unit = quantity[:-2], quantity[-2:]
    return float(number) * {"Mi": 1, "Gi": 1024, "mb": 1}[unit]


def _learned(calls: Calls) -> list[FunctionState]:
    """The states of functions that have learned, by size or not, from as many calls as a window has."""
    states = []
    for name in WORKLOADS:
        learner = Learner(name)
        for call in calls[_SEED][name]:
            observed = replace(sample(call), limit_cpu_milli=ALLOCATION[0], limit_memory_bytes=ALLOCATION[1])
            learner.observe(observed)
        states.append(learner.function.state())
    return states


def _name(i: int) -> str:
    return f"bench/function-{i:05d}-00001"


def _named(state: FunctionState, i: int, milliseconds: int) -> FunctionState:
    name, configuration = _name(i), f"bench/function-{i:05d}"
    published = replace(state.published, function=name, configuration=configuration)
    return state.model_copy(
        update={
            "name": name,
            "configuration": configuration,
            "published": published,
            "since_refit": i % 400,  # a refit is due after 20 calls, and at the latest after 400
            "learned_to": f"{milliseconds}-0",
            "last_milliseconds": milliseconds,
        }
    )


def _fill(client: redis.Redis, states: Sequence[FunctionState], count: int) -> int:
    """Saves functions as the predictor does; returns the bytes of all entries."""
    milliseconds = int(1000 * time.time())
    length = 0
    for start in range(0, count, _PAGE):
        entries, tokens = {}, {}
        for i in range(start, min(start + _PAGE, count)):
            state = _named(states[i % len(states)], i, milliseconds)
            entries[state.name] = packed(state)
            tokens[state.name] = f"{state.published.version}:modelled:{state.published.observations}"
            length += len(entries[state.name])
        client.hset(FUNCTIONS, mapping=entries)  # type: ignore[arg-type]
        client.hset(VERSIONS, mapping=tokens)  # type: ignore[arg-type]
    return length


class _Observer:
    """Appends to the stream what agents would append for the same calls."""

    def __init__(self, client: redis.Redis, calls: Calls, count: int) -> None:
        self._client = client
        self._calls = list(calls[_SEED].values())
        self._count = count
        self._random = random.Random(0)  # noqa: S311

    def append(self, functions: Sequence[int]) -> None:
        with self._client.pipeline(transaction=False) as pipeline:
            for i in functions:
                call = self._random.choice(self._calls[i % len(self._calls)])
                data = observation(_name(i).removeprefix("bench/"), call)
                limit = {"cpu_milli": ALLOCATION[0], "memory_bytes": ALLOCATION[1]}
                data |= {"limit": limit, "limit_at_peak": limit, "id": f"{self._random.getrandbits(128):x}"}
                data["configuration"] = data["configuration"].removesuffix("-00001")
                fields: Any = {"v": VERSION, "data": json.dumps(data, separators=(",", ":"))}
                pipeline.xadd(STREAM, fields, maxlen=_OBSERVATIONS)
            pipeline.execute()

    def append_all(self) -> None:
        """Appends as many as Redis keeps, at once, of functions at random."""
        for _ in range(math.ceil(_OBSERVATIONS / _PAGE)):
            self.append([self._random.randrange(self._count) for _ in range(_PAGE)])

    def append_for(self, seconds: float) -> None:
        began = time.monotonic()
        for i in range(int(10 * seconds)):
            time.sleep(max(0.0, began + i / 10 - time.monotonic()))
            self.append([self._random.randrange(self._count) for _ in range(_RATE // 10)])

    def all_learned(self) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while time.monotonic() < deadline:
            groups = self._client.xinfo_groups(STREAM)
            if any(g["name"] == GROUP.encode() and not g["lag"] and not g["pending"] for g in groups):
                return
            time.sleep(0.2)
        raise NotMeasuredError(f"after {_WAIT_SECONDS:.0f} s not all observations are learned: {groups}")


class _Liveness(threading.Thread):
    """Probes as the kubelet does, again and again: an answer takes as long as whatever delays all others."""

    def __init__(self, server: Predictor) -> None:
        super().__init__(daemon=True)
        self._port = server.http_port
        self.longest_s = 0.0
        self._stop_asking = threading.Event()

    def run(self) -> None:
        while not self._stop_asking.wait(0.02):
            began = time.monotonic()
            if asked(self._port, "GET", "/v2/health/live")[0] == 200:
                self.longest_s = max(self.longest_s, time.monotonic() - began)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            self._stop_asking.set()
            self.join()


def _memory_mib(server: Predictor) -> tuple[float, float]:
    """The resident memory now, and its peak."""
    lines = Path(f"/proc/{server.pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    now, most = (int(fields[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))
    return now, most


def _cpu_seconds(server: Predictor) -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def _ask_all(server: Predictor, count: int) -> float:
    """Asks for each function once, as activators do; returns the seconds that it took."""
    began = time.monotonic()
    body = infer_body(4096)
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    for i in range(count):
        model = _name(i).replace("/", ".")
        connection.request("POST", f"/v2/models/{model}/infer", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise NotMeasuredError(f"{model}: status {response.status}, {answer[:200]!r}")
    connection.close()
    return time.monotonic() - began


def _scrape(server: Predictor) -> tuple[float, float]:
    began = time.monotonic()
    status, text = asked(server.http_port, "GET", "/metrics")
    if status != 200:
        raise NotMeasuredError(f"/metrics: status {status}")
    return time.monotonic() - began, len(text) / _MIB


def _filled(client: redis.Redis, states: Sequence[FunctionState], count: int) -> dict[str, float]:
    before = _data_bytes(client)
    length = _fill(client, states, count)
    taken = _data_bytes(client) - before
    return {
        "entry_kib": length / count / 1024,
        "redis_functions_mib": taken / _MIB,
        "redis_kib_a_function": taken / count / 1024,
    }


def _data_bytes(client: redis.Redis) -> int:
    """The memory that maxmemory bounds, but for some KiB."""
    return int(client.info("memory")["used_memory"])


def _learner(out: Path, port: int, pinned: bool, observer: _Observer, count: int) -> dict[str, float]:
    """Measures the predictor that learns: it starts, answers for each function, and observes."""
    metrics: dict[str, float] = {}
    began = time.monotonic()
    with predictor(out, port, pinned) as server:
        metrics["load_s"] = time.monotonic() - began
        metrics["loaded_mib"], metrics["load_most_mib"] = _memory_mib(server)
        metrics["ask_all_s"] = _ask_all(server, count)
        metrics["asked_mib"], _ = _memory_mib(server)
        liveness = _Liveness(server)
        with liveness.watching():
            to_output(f"appending {_OBSERVATIONS} observations at once")
            began = time.monotonic()
            observer.append_all()
            observer.all_learned()
            metrics["observed_per_s"] = _OBSERVATIONS / (time.monotonic() - began)
            to_output(f"appending {_RATE} observations a second, for {_RATE_SECONDS} s")
            before = _cpu_seconds(server)
            observer.append_for(_RATE_SECONDS)
            observer.all_learned()
            spent = _cpu_seconds(server) - before
            metrics["cpu_ms_an_observation"] = 1e3 * spent / (_RATE * _RATE_SECONDS)
            metrics["scrape_s"], metrics["scrape_mib"] = _scrape(server)
        metrics["longest_unanswered_s"] = liveness.longest_s
        _, metrics["predictor_mib"] = _memory_mib(server)
    return metrics


def _replica(out: Path, port: int, pinned: bool, count: int) -> dict[str, float]:
    began = time.monotonic()
    with predictor(out, port, pinned, "--role", "serve") as server:
        load_s = time.monotonic() - began
        _ask_all(server, count)
        return {"replica_load_s": load_s, "replica_mib": _memory_mib(server)[1]}


def _measure(options: argparse.Namespace, calls: Calls) -> tuple[dict[str, float], dict[str, Goal]]:
    count, out, pinned = options.functions, options.out, can_pin()
    redis_container = _container("redis/deployment.yaml", "spec", "template", "spec")
    arguments: list[str] = redis_container["args"]
    maxmemory = _mib(arguments[arguments.index("--maxmemory") + 1])
    redis_limit = _mib(redis_container["resources"]["limits"]["memory"])
    limits = _container("predictor/inferenceservice.yaml", "spec", "predictor")["resources"]["limits"]
    goals = {
        "redis_data_mib": Goal(maxmemory - _POOLS_MIB[0]),
        "redis_mib": Goal(redis_limit - _POOLS_MIB[1]),
        "predictor_mib": Goal(_mib(limits["memory"])),
        "replica_mib": Goal(_mib(limits["memory"])),
        "longest_unanswered_s": Goal(_LIVENESS_SECONDS),
    }
    to_output(f"learning {len(WORKLOADS)} functions")
    states = _learned(calls)
    by_size = sum(any(table.thresholds for table in _tables(state)) for state in states)
    to_output(f"{by_size} of them have answers by size; storing copies of them as {count} functions")
    with redis_server(out, pinned, arguments) as port:
        client = redis.Redis(host="127.0.0.1", port=port, protocol=2)
        before, rss_before = _data_bytes(client), int(client.info("memory")["used_memory_rss"]) / _MIB
        with predictor(out, port, pinned) as server:
            metrics = {"empty_mib": _memory_mib(server)[0]}
        client.flushall()
        metrics |= _filled(client, states, count)
        observer = _Observer(client, calls, count)
        observer.append([0])  # newer than all that was learned, or Redis would seem to have started over
        metrics |= _learner(out, port, pinned, observer, count)
        metrics["redis_data_mib"] = (_data_bytes(client) - before) / _MIB
        metrics["redis_mib"] = int(client.info("memory")["used_memory_rss"]) / _MIB - rss_before
        metrics |= _replica(out, port, pinned, count)
        client.close()
    metrics["predictor_kib_a_function"] = 1024 * (metrics["predictor_mib"] - metrics["empty_mib"]) / count
    return metrics, goals


def _tables(state: FunctionState) -> tuple[Any, ...]:
    answers = state.answers
    return answers.cpu_milli, answers.memory_bytes, answers.duration_ms, answers.cpu_time_us


def _judged(metrics: Mapping[str, float], goals: Mapping[str, Goal]) -> dict[str, str]:
    """Judges values that are counted, not sampled: each is its own interval."""
    return {name: goal.verdict((metrics[name], metrics[name])) for name, goal in goals.items()}


def main() -> int:
    options = _options(sys.argv[1:])
    options.out.mkdir(parents=True, exist_ok=True)
    described = machine.described()
    to_output(", ".join(f"{what} {value}" for what, value in described.items()))
    try:
        calls, _ = measured(options.out, [_SEED], _PER_FUNCTION, False, 60 * 40, to_output)
        metrics, goals = _measure(options, calls)
    except NotMeasuredError as error:
        sys.stderr.write(f"not measured: {error}\n")
        return 1
    verdicts = _judged(metrics, goals)
    rows = [["", "measured", "goal", ""]]
    for name, value in metrics.items():
        goal = goals.get(name)
        rows.append([name, f"{value:.4g}", "" if goal is None else str(goal), verdicts.get(name, "")])
    report.table(to_output, f"{options.functions} functions", rows)
    results = {"metrics": metrics, "goals": verdicts, "functions": options.functions, "machine": described}
    report.write(options.out / "functions.json", results)
    return 1 if DOES_NOT_HOLD in verdicts.values() else 0


if __name__ == "__main__":
    sys.exit(main())
