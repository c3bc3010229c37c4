"""python -m bench"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import drift, exactness, goals, heldout, machine, report, serving
from bench.calls import NotMeasuredError, measured
from bench.learner import Times
from bench.processes import ROOT
from bench.report import to_output
from bench.workloads import WORKLOADS


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measures the predictor on functions that it really runs. The first run takes two cores"
        " for about twenty minutes; anything else that runs meanwhile distorts the results.",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="default: 1 2 3")
    parser.add_argument(
        "--train", type=int, default=160, help="calls per function and seed to learn from (default: 160)"
    )
    parser.add_argument(
        "--held-out",
        type=int,
        default=100,
        help="calls per function and seed to hold out and predict (default: 100)",
    )
    parser.add_argument("--fresh", action="store_true", help="measure the calls again, even if some are kept")
    parser.add_argument(
        "--minutes", type=float, default=40, help="minutes after which to give up making calls (default: 40)"
    )
    parser.add_argument(
        "--skip-serving",
        action="store_true",
        help="skip the measurements that need Go, redis-server and a running server",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a two-minute smoke test, whose figures mean nothing"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "out" / "bench-predictor", help="default: out/bench-predictor"
    )
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.train, options.held_out = [1], 40, 20
    return options


def _progress(line: str) -> None:
    to_output(f"  {line}")


def _run(options: argparse.Namespace) -> None:
    began = time.monotonic()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    described = machine.described()
    per_function = options.train + options.held_out
    count = len(WORKLOADS) * len(options.seeds) * per_function
    to_output(", ".join(f"{what} {value}" for what, value in described.items()))
    to_output(
        f"{len(WORKLOADS)} functions, seeds {' '.join(map(str, options.seeds))}: {options.train} calls each"
        f" to learn from, {options.held_out} held out; {count} calls in all"
    )
    calls, making_seconds = measured(
        out, options.seeds, per_function, options.fresh, 60 * options.minutes, _progress
    )

    trials = heldout.trials(calls, options.train, _progress)
    to_output("answering after a drift, comparing tables")
    drifted = {step: drift.drifts(calls, options.train, step) for step in drift.STEPS}
    comparisons = exactness.COMPARISONS // (10 if options.quick else 1)
    exact = exactness.compared(calls, options.train, comparisons, _progress)

    metrics: dict[str, float] = {}
    intervals: dict[str, tuple[float, float]] = {}
    report.table_2(trials, to_output)
    for more, bounds in (
        report.held_out(trials, to_output),
        *(report.drift_recovery(found, step, to_output) for step, found in drifted.items()),
    ):
        metrics |= more
        intervals |= bounds
    metrics |= report.cpu_times(trials, to_output)
    times = Times()
    for trial in trials:
        times.extend(trial.times)
    more, bounds = report.learning_times(times, to_output)
    metrics |= more
    intervals |= bounds
    metrics["table_mismatches"] = exact.mismatches + exact.lowered
    to_output(
        f"\nTables against boosters: {exact.mismatches} mismatches in {exact.comparisons} comparisons;"
        f" {exact.lowered} answers lowered by snapping"
    )
    if not options.skip_serving:
        served = serving.measured(calls, options.train, out, options.quick, _progress)
        serving.table(served, to_output)
        metrics |= served.metrics
        intervals |= served.intervals
        metrics["table_mismatches"] += served.go_mismatches + served.server_mismatches

    report.table(to_output, "Goals", goals.rows(metrics, intervals))
    report.write(
        out / "results.json",
        {
            "metrics": metrics,
            "intervals": intervals,
            "goals": goals.judged(metrics, intervals),
            "seeds": options.seeds,
            "train": options.train,
            "held_out": options.held_out,
            "calls": count,
            "held_out_calls": {
                "related": sum(len(t.calls) for t in trials if t.size_related),
                "unrelated": sum(len(t.calls) for t in trials if not t.size_related),
            },
            "table_comparisons": exact.comparisons,
            "quick": options.quick,
            "machine": described,
            "making_seconds": round(making_seconds, 1),
            "seconds": round(time.monotonic() - began, 1),
        },
    )


def main() -> int:
    try:
        _run(_options(sys.argv[1:]))
    except NotMeasuredError as error:
        sys.stderr.write(f"not measured: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
