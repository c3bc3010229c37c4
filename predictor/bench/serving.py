"""Asks a real server, beside a real Redis, from the activator's side: latency, rate and exactness."""

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import redis

from bench import report
from bench.calls import Calls, NotMeasuredError, Say
from bench.exactness import sizes_to_try
from bench.processes import ROOT, WAIT_SECONDS, asked, can_pin, core, predictor, redis_server
from bench.zygote import Call
from libra_predictor.observations import STREAM, UNKNOWN_SIZE, VERSION
from libra_predictor.published import Answers, Published, Record, Stage
from libra_predictor.tables import StepTable

_RATE = 1000  # requests per second of the open loop
_CLIENTS = (1, 16)
_TOOL_SECONDS = 600.0  # the first build of the Go client takes longest
_SETTLED_SECONDS = 3.0  # in which no answer changes
_ASKED = 60  # sizes of each function that the server itself is asked for
_NAMESPACE = "bench"
_OUTPUTS = ("cpu_milli", "memory_bytes", "duration_ms", "cpu_time_us")


@dataclass
class Served:
    """The results; rates are in requests per second."""

    loads: list[dict[str, Any]]
    lookup: dict[str, Any]
    comparisons: int
    go_mismatches: int
    server_mismatches: int  # of the server's own answers with its own tables
    pinned: bool  # server and clients each on a core of their own
    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)


def measured(calls: Calls, train: int, out: Path, quick: bool, say: Say) -> Served:
    """Measures the server. Raises NotMeasuredError if a part is missing or does not answer."""
    tool = out / "benchpredict"
    say("building the Go client")
    _finished(["go", "build", "-o", str(tool), "./activator-plugin/predict/benchpredict"])
    pinned = can_pin()
    functions = {name: made[:train] for name, made in next(iter(calls.values())).items()}
    in_memory = ("--save", "", "--appendonly", "no")
    with redis_server(out, pinned, in_memory) as port, predictor(out, port, pinned) as server:
        _observe(port, functions)
        http_port = server.http_port
        answers = _settled(http_port, functions, say)
        checked, server_mismatches = _expectations(http_port, answers, 10_000 if quick else 40_000)
        tables = out / "tables.json"
        tables.write_text("\n".join(json.dumps(function) for function in checked))
        check = _tool(pinned, tool, "check", str(tables), may_fail=True)
        say(f"Go against Python: {check['mismatches']} mismatches in {check['comparisons']} comparisons")
        lookup = _tool(pinned, tool, "lookup", "--lookups", "100000" if quick else "1000000", str(tables))
        loads = []
        models = ",".join(f"{_NAMESPACE}.{name}" for name in functions)
        load = ("load", "--address", f"127.0.0.1:{http_port}", "--model", models)
        lasting = ("--duration", "2s" if quick else "15s")
        for clients in _CLIENTS:
            say(f"{clients} clients, as fast as the server answers")
            loads.append(_tool(pinned, tool, *load, *lasting, "--connections", str(clients)))
        say(f"{_RATE} requests per second")
        loads.append(
            _tool(pinned, tool, *load, *lasting, "--connections", str(_CLIENTS[-1]), "--rate", str(_RATE))
        )
    served = Served(loads, lookup, check["comparisons"], check["mismatches"], server_mismatches, pinned)
    for load in loads:
        if load["errors"]:
            raise NotMeasuredError(f"{load['errors']} requests failed, the first: {load['first_error']}")
    served.metrics = _metrics(served)
    served.intervals = _intervals(served)
    return served


def table(served: Served, say: Say) -> None:
    look = served.lookup
    report.table(
        say,
        f"Look-up in the activator's tables, in Go: {look['lookups']} in {look['functions']} functions."
        " p50 and p99 include two readings of the clock.",
        [
            ["mean ns", "p50 ns", "p99 ns", "p99.9 ns", "clock alone, p50 ns"],
            [f"{1000 * look[k]:.0f}" for k in ("mean_us", "p50_us", "p99_us", "p999_us", "clock_p50_us")],
        ],
    )
    rows = [["clients", "loop", "asked/s", "answered/s", "p50 ms", "p99 ms", "p99.9 ms"]]
    rows += (
        [
            str(load["connections"]),
            load["mode"],
            f"{load['target_rps']:.0f}" if load["mode"] == "open" else "",
            f"{load['achieved_rps']:.0f}",
            *(f"{load[k]:.2f}" for k in ("p50_ms", "p99_ms", "p999_ms")),
        ]
        for load in served.loads
    )
    where = "one core, the Go client on another" if served.pinned else "cores that it shares with the client"
    report.table(
        say,
        f"The server, on {where}. The client's own time counts as well.",
        rows,
    )
    say(
        f"Go against Python: {served.go_mismatches} mismatches in {served.comparisons} comparisons;"
        f" the server's answers against its own tables: {served.server_mismatches}"
    )


def _metrics(served: Served) -> dict[str, float]:
    metrics = {
        "table_lookup_p99_us": served.lookup["p99_us"],
        "table_lookup_mean_us": served.lookup["mean_us"],
    }
    for load in served.loads:
        if load["mode"] == "open":
            metrics["infer_p99_ms"] = load["p99_ms"]
        else:
            metrics["infer_rps"] = max(metrics.get("infer_rps", 0.0), load["achieved_rps"])
    return metrics


def _intervals(served: Served) -> dict[str, tuple[float, float]]:
    """The intervals that there are: the client gives none for a single second or a thousand look-ups."""
    named = [("table_lookup_p99_us", served.lookup, "us")]
    named += [("infer_p99_ms", load, "ms") for load in served.loads if load["mode"] == "open"]
    return {
        name: (of[f"p99_low_{unit}"], of[f"p99_high_{unit}"])
        for name, of, unit in named
        if f"p99_low_{unit}" in of
    }


def _finished(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=_TOOL_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise NotMeasuredError(str(error)) from error
    except OSError as error:
        raise NotMeasuredError(
            f"{command[0]}: {error}; --skip-serving skips the measurements that need it"
        ) from error
    if done.returncode != 0 and not done.stdout:
        raise NotMeasuredError(f"{' '.join(command)} failed:\n{done.stderr}")
    return done.stdout


def _tool(pinned: bool, tool: Path, *arguments: str, may_fail: bool = False) -> dict[str, Any]:
    """Runs the Go client. With may_fail, even a bad result is returned."""
    result: dict[str, Any] = json.loads(_finished([*core(pinned, 1), str(tool), *arguments]))
    if not may_fail and result.get("requests") == 0:
        raise NotMeasuredError(f"benchpredict {' '.join(arguments)}: no answer; {result.get('first_error')}")
    return result


def _observe(port: int, functions: dict[str, list[Call]]) -> None:
    """Appends what the node agent would append for the functions' calls, in turn."""
    with redis.Redis(host="127.0.0.1", port=port, protocol=2) as client:
        for together in zip(*functions.values(), strict=True):
            for name, call in zip(functions, together, strict=True):
                client.xadd(STREAM, {"v": VERSION, "data": json.dumps(observation(name, call))})


def observation(name: str, call: Call) -> dict[str, Any]:
    """An api.Observation as Go writes it, of a call that was alone and not held back by a limit."""
    nothing = {"cpu_milli": 0, "memory_bytes": 0}
    return {
        "id": "bench",
        "function": f"{_NAMESPACE}/{name}",
        "configuration": f"{_NAMESPACE}/{name}",
        "pod": f"{_NAMESPACE}/{name}",
        "size": call.size,
        "duration_ns": call.duration_ns,
        "predicted": nothing,
        "lent": nothing,
        "borrowed": nothing,
        "alone": True,
        "first": False,
        "status": 200,
        "peak": {"cpu_milli": call.cpu_milli, "memory_bytes": call.memory_bytes},
        "limit": nothing,
        "limit_at_peak": nothing,
        "throttled_share": 0.0,
        "cpu_time_ns": call.cpu_time_ns,
    }


def _settled(http_port: int, functions: dict[str, list[Call]], say: Say) -> dict[str, Any]:
    """The answer of every function, once all are modelled and nothing has changed for a while."""
    say("waiting until the server has learned")
    deadline = time.monotonic() + WAIT_SECONDS
    before: dict[str, Any] = {}
    since = time.monotonic()
    while time.monotonic() < deadline:
        now = {name: _infer(http_port, name, 4096) for name in functions}
        modelled = all(answer and answer["parameters"]["stage"] == "modelled" for answer in now.values())
        if now != before or not modelled:
            before, since = now, time.monotonic()
        elif time.monotonic() - since > _SETTLED_SECONDS:
            return now
        time.sleep(0.2)
    stages = {name: answer and answer["parameters"]["stage"] for name, answer in before.items()}
    raise NotMeasuredError(f"after {WAIT_SECONDS:.0f} s not every function is modelled: {stages}")


def _expectations(http_port: int, answers: dict[str, Any], count: int) -> tuple[list[dict[str, Any]], int]:
    """Python's answers for about count sizes of each function, and the number of the server's mismatches."""
    rng = np.random.default_rng(0)
    found, mismatches = [], 0
    for name, answer in answers.items():
        published = _published(answer)
        answers = published.answers
        tables = (answers.cpu_milli, answers.memory_bytes, answers.duration_ms, answers.cpu_time_us)
        sizes = [UNKNOWN_SIZE]
        for table in tables:
            sizes += sizes_to_try(table, count // len(tables), rng).tolist()
        found.append(
            {
                "function": f"{_NAMESPACE}/{name}",
                "answer": answer,
                "sizes": sizes,
                "expected": [_expected(published, size) for size in sizes],
            }
        )
        for size in [UNKNOWN_SIZE, *rng.choice(sizes, _ASKED).tolist()]:
            outputs = _outputs(_infer(http_port, name, size))
            mismatches += tuple(outputs[o][0] for o in _OUTPUTS) != _expected(published, size)
    return found, mismatches


def _expected(published: Published, size: int) -> tuple[int, int, int, int]:
    """The answer in the order of _OUTPUTS."""
    return *published.at(size), published.answers.cpu_time_at(size)


def _published(answer: dict[str, Any]) -> Published:
    """Rebuilds from an answer what a client in Python would know of the function."""
    outputs = _outputs(answer)
    cpu, memory, duration, cpu_time = (
        StepTable(tuple(outputs[f"{o}_thresholds"]), tuple(outputs[f"{o}_values"])) for o in _OUTPUTS
    )
    nothing = Record("")
    return Published(
        function="",
        configuration="",
        version=int(answer["parameters"]["version"]),
        stage=Stage(answer["parameters"]["stage"]),
        reason="",
        answers=Answers(
            cpu,
            memory,
            duration,
            _three(outputs["unknown"]),
            cpu_time,
            outputs["unknown_cpu_time_us"][0],
            outputs["largest_size"][0],
        ),
        offset=_two(outputs["offset"]),
        largest=_two(outputs["largest"]),
        observations=0,
        censored=0,
        cpu=nothing,
        memory=nothing,
        duration=nothing,
        gate=None,
    )


def _outputs(answer: dict[str, Any]) -> dict[str, list[int]]:
    return {output["name"]: output["data"] for output in answer["outputs"]}


def _two(data: list[int]) -> tuple[int, int]:
    first, second = data
    return first, second


def _three(data: list[int]) -> tuple[int, int, int]:
    first, second, third = data
    return first, second, third


def infer_body(size: int) -> str:
    return json.dumps({"inputs": [{"name": "size", "shape": [1], "datatype": "INT64", "data": [size]}]})


def _infer(http_port: int, name: str, size: int) -> Any:
    """The answer, or None while there is none."""
    status, answer = asked(http_port, "POST", f"/v2/models/{_NAMESPACE}.{name}/infer", infer_body(size))
    if status == 200:
        return json.loads(answer)
    if status == 404:
        return None
    raise NotMeasuredError(f"{name}, size {size}: status {status}, {answer[:500]!r}")
