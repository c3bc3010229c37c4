"""Prints the results, and gives them names."""

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

from bench import drift
from bench.calls import Say
from bench.goals import percentile_interval
from bench.heldout import (
    ALLOCATION,
    ARG_MAX,
    HISTOGRAM,
    MEDIAN_OF_ALL,
    MOVING_WINDOW,
    OURS,
    RESOURCES,
    RF,
    Trial,
)
from bench.learner import Pair, Times
from bench.scores import Outcome, Share, harvested, least_constant, ordered, under_predicted
from bench.workloads import WORKLOADS
from libra_predictor.estimators import ranked

Metrics = dict[str, float]
Intervals = dict[str, tuple[float, float]]

_COLUMNS = 120
_CLASSES = {"related": True, "unrelated": False}
_MAY_MISS = {"related": 0.01, "unrelated": 0.03}
_MODELS = ("LR", "SVM", "NN", "RF", OURS)
_ANSWERED = f"{OURS}, answered"
_FROZEN = (OURS, ARG_MAX, RF, HISTOGRAM, MOVING_WINDOW)
_ONLINE = (OURS, HISTOGRAM, MOVING_WINDOW)


def to_output(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def write(path: Path, results: Mapping[str, object]) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(results, indent=2) + "\n")
    os.replace(partial, path)
    to_output(f"\nwritten to {path}")


def table(say: Say, title: str, rows: Iterable[Sequence[str]]) -> None:
    """Prints rows in columns. The first row is the head."""
    written = [list(row) for row in rows]
    widths = [max(len(row[i]) for row in written) for i in range(len(written[0]))]
    say("")
    for line in textwrap.wrap(title, _COLUMNS):
        say(line)
    for row in written:
        first = row[0].ljust(widths[0])
        say("  ".join([first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]))


def table_2(trials: Sequence[Trial], say: Say) -> None:
    """As the paper's: accuracy CPU / accuracy memory / R² duration, on held-out calls."""

    def cell(of: Sequence[Trial], model: str) -> str:
        answers = [t.frozen[OURS] if model == _ANSWERED else t.probable[model] for t in of]
        cpu, memory = (
            np.mean([t.accuracy(a, i) for t, a in zip(of, answers, strict=True)]) for i in range(2)
        )
        if model == _ANSWERED:
            return f"{cpu:.2f}/{memory:.2f}"
        r2 = np.mean([t.r2(t.durations[model]) for t in of])
        return f"{cpu:.2f}/{memory:.2f}/{r2:.2f}"

    models = (*_MODELS, _ANSWERED)
    rows: list[list[str]] = [["function", *models]]
    for related in (True, False):
        of_class = [t for t in trials if t.size_related == related]
        for name in dict.fromkeys(t.name for t in of_class):
            of = [t for t in of_class if t.name == name]
            rows.append([f"{WORKLOADS[name].title} {name}", *(cell(of, m) for m in models)])
        rows.append(
            ["average, size-" + ("related" if related else "unrelated"), *(cell(of_class, m) for m in models)]
        )
    table(
        say,
        "Table 2. Accuracy CPU / accuracy memory / R² duration, mean over the seeds. Ours: XGBoost's most"
        " probable option and median duration. 'Answered' is the predictor's answer, which errs upward on"
        " purpose.",
        rows,
    )


def held_out(trials: Sequence[Trial], say: Say) -> tuple[Metrics, Intervals]:
    """Under-prediction and harvested share, by class, by function, frozen and online."""
    metrics: Metrics = {}
    intervals: Intervals = {}
    columns = ("under", "harvest", "penalised", "by time", "of least")
    for kind, related in _CLASSES.items():
        of_class = [t for t in trials if t.size_related == related]
        rows = [["estimator", *(f"{resource} {column}" for resource in RESOURCES for column in columns)]]
        for mode, names in (("frozen", _FROZEN), ("online", _ONLINE)):
            for name in names:
                row = [f"{name}, {mode}"]
                for i, resource in enumerate(RESOURCES):
                    outcomes = _outcomes(of_class, mode, name, i)
                    tight = _of_least(of_class, mode, name, i)
                    row += _cells(outcomes, tight)
                    if name != OURS:
                        continue
                    suffix = f"{resource[:3]}_{kind}" + ("" if mode == "frozen" else "_online")
                    for what, share in (
                        ("under", under_predicted(outcomes)),
                        ("harvest", harvested(outcomes)),
                        ("harvest_by_time", harvested(outcomes, by_time=True)),
                        ("harvest_of_least", harvested(tight)),
                    ):
                        metrics[f"{what}_{suffix}"] = share.value
                        intervals[f"{what}_{suffix}"] = (share.low, share.high)
                rows.append(row)
        hindsight = [_cells(*_best_constant(of_class, i, _MAY_MISS[kind])) for i in range(2)]
        rows.append(["best constant", *hindsight[0], *hindsight[1]])
        calls = sum(len(t.calls) for t in of_class)
        table(say, f"Size-{kind} functions, {calls} held-out calls. {_explained(kind)}", rows)
    _by_function(trials, say)
    return metrics, intervals


def cpu_times(trials: Sequence[Trial], say: Say) -> Metrics:
    """How well predicted CPU times order the held-out calls of all functions of a seed."""
    metrics: Metrics = {}
    rows = [["estimator", "all", *(f"size-{kind}" for kind in _CLASSES), "all, within 2x"]]
    for name in (OURS, MEDIAN_OF_ALL):
        shares = [_ordered(trials, name)]
        shares += (
            _ordered([t for t in trials if t.size_related == related], name) for related in _CLASSES.values()
        )
        errors = np.concatenate([np.abs(np.log2(t.cpu_times[name] / t.used)) for t in trials])
        near = float((errors <= 1).mean())
        rows.append([name, *(f"{100 * share:.1f} %" for share in (*shares, near))])
        if name == OURS:
            metrics |= {
                "cpu_time_ordered": shares[0],
                **{f"cpu_time_ordered_{k}": s for k, s in zip(_CLASSES, shares[1:], strict=True)},
                "cpu_time_within_2x": near,
            }
    table(
        say,
        "CPU time, frozen: share of the pairs of held-out calls, of any functions of one seed, whose"
        " predictions are in the same order as the CPU times that they used, mean over the seeds; and share"
        " of calls predicted within a factor of two.",
        rows,
    )
    return metrics


def _ordered(trials: Sequence[Trial], name: str) -> float:
    shares = []
    for seed in dict.fromkeys(t.seed for t in trials):
        of = [t for t in trials if t.seed == seed]
        shares.append(
            ordered(np.concatenate([t.cpu_times[name] for t in of]), np.concatenate([t.used for t in of]))
        )
    return float(np.mean(shares))


def _explained(kind: str) -> str:
    allocation = f"{ALLOCATION[0]}m and {ALLOCATION[1] >> 20}Mi"
    return (
        "Under: share under-predicted. Harvest: share of what an oracle would lend when the owner has"
        f" allocated {allocation}. Both with the wider of the 95 % intervals over calls and over trainings of"
        " these functions; an under-predicted call lends nothing or,"
        " penalised, minus what it lacked. By time: each call is weighted by its duration. Of least:"
        " harvest if the owner had allocated the least that holds every call. Frozen: nothing is learned from"
        " held-out calls. Online: each is learned from after it is answered. Best constant: the lowest answer"
        " for each function that, with the held-out calls known, misses no more than"
        f" {100 * _MAY_MISS[kind]:.0f} % of them."
    )


def _cells(outcomes: Sequence[Outcome], tight: Sequence[Outcome]) -> list[str]:
    return [
        str(under_predicted(outcomes)),
        str(harvested(outcomes)),
        _percent(harvested(outcomes, penalty=True)),
        _percent(harvested(outcomes, by_time=True)),
        _percent(harvested(tight)),
    ]


def _of_least(trials: Sequence[Trial], mode: str, name: str, resource: int) -> list[Outcome]:
    return [
        replace(o, allocation=trial.least[resource])
        for trial in trials
        for o in trial.outcomes(resource, _answers(trial, mode)[name])
    ]


def _best_constant(
    trials: Sequence[Trial], resource: int, missed: float
) -> tuple[list[Outcome], list[Outcome]]:
    """The outcomes of the best constant, with the owner's allocation and with the least."""
    found: list[Outcome] = []
    tight: list[Outcome] = []
    for name in dict.fromkeys(t.name for t in trials):
        of = [t for t in trials if t.name == name]
        outcomes = _outcomes(of, "frozen", OURS, resource)
        constant = least_constant(outcomes, missed)
        found += (replace(o, answer=constant) for o in outcomes)
        tight += (replace(o, answer=constant) for o in _of_least(of, "frozen", OURS, resource))
    return found, tight


def _outcomes(trials: Sequence[Trial], mode: str, name: str, resource: int) -> list[Outcome]:
    return [o for t in trials for o in t.outcomes(resource, _answers(t, mode)[name])]


def _answers(trial: Trial, mode: str) -> dict[str, list[Pair]]:
    return trial.frozen if mode == "frozen" else trial.online


def _by_function(trials: Sequence[Trial], say: Say) -> None:
    rows = [
        [
            "function",
            "least",
            "cpu under",
            "cpu harvest",
            "online",
            "mem under",
            "mem harvest",
            "online",
            "gate",
            "estimators by seed",
        ]
    ]
    for name in dict.fromkeys(t.name for t in trials):
        of = [t for t in trials if t.name == name]
        row = [name, f"{of[0].least[0]}m {of[0].least[1] >> 20}Mi"]
        for i in range(2):
            frozen, online = _outcomes(of, "frozen", OURS, i), _outcomes(of, "online", OURS, i)
            row += [
                _percent(under_predicted(frozen)),
                _percent(harvested(frozen)),
                _percent(under_predicted(online)),
            ]
        gates = [t.gate for t in of if t.gate is not None]
        passed = sum(min(gate) >= 0.9 for gate in gates)
        row.append(f"{passed} of {len(of)}")
        row.append(" ".join("/".join(e[0] for e in t.estimators) for t in of))
        rows.append(row)
    table(
        say,
        "Ours by function. Least: the smallest options that hold every measured call. Online:"
        " under-predicted when learning goes on. Gate: seeds that would pass the paper's threshold of 0.9."
        " Estimators: CPU/memory/duration, (x)gboost, (h)istogram.",
        rows,
    )


def _percent(share: Share) -> str:
    return f"{100 * share.value:.1f} %"


def drift_recovery(found: Sequence[drift.Drift], step: int, say: Say) -> tuple[Metrics, Intervals]:
    """step is the memory, in bytes, between two options. Only the figures of the fine step count."""
    felt = [d for d in found if d.felt]
    rows = [["", f"under, first {drift.FIRST}", "under, later", "harvest, later"]]
    for what in (drift.OURS, drift.REFIT_ONLY, drift.STATIC):
        r = drift.recovery(felt, what)
        rows.append([what, str(r.first), str(r.later), str(r.later_harvest)])
    everything = drift.recovery(list(found), drift.OURS)
    rows.append(
        [
            f"{drift.OURS}, all functions",
            str(everything.first),
            str(everything.later),
            str(everything.later_harvest),
        ]
    )
    for name in dict.fromkeys(d.name for d in felt):
        of = [d for d in felt if d.name == name]
        r = drift.recovery(of, drift.OURS)
        rows.append([f"{drift.OURS}, {name} ({len(of)})", str(r.first), str(r.later), str(r.later_harvest)])
    table(
        say,
        f"Memory demand grows by a factor of {drift.FACTOR} from one call to the next, with {step >> 20}Mi"
        f" between options: the {len(felt)} of {len(found)} pairs of function and seed of which most calls"
        " then need another option.",
        rows,
    )
    if not felt:
        return {}, {}
    ours = drift.recovery(felt, drift.OURS)
    suffix = "" if step == drift.FINE_STEP else f"_{step >> 20}mi"
    shares = {
        name: share
        for name, share in (
            (f"drift_under_first{drift.FIRST}{suffix}", ours.first),
            (f"drift_under_later{suffix}", ours.later),
        )
        if share.count
    }
    return {k: s.value for k, s in shares.items()}, {k: (s.low, s.high) for k, s in shares.items()}


def learning_times(times: Times, say: Say) -> tuple[Metrics, Intervals]:
    rows = [["", "median ms", "p99 ms", "count"]]
    for what, values in (
        ("training three models", times.training),
        ("refit, with the choice of estimators", times.refit),
        ("update, one observation", times.update),
    ):
        rows.append([what, f"{median(values):.3f}", f"{ranked(values, 0.99):.3f}", str(len(values))])
    table(say, "Time to learn, one thread.", rows)
    metrics = {
        "train_ms": ranked(times.training, 0.99),
        "train_median_ms": median(times.training),
        "refit_ms": ranked(times.refit, 0.99),
        "refit_median_ms": median(times.refit),
        "update_ms": ranked(times.update, 0.99),
        "update_median_ms": median(times.update),
    }
    intervals = {
        "train_ms": percentile_interval(times.training, 0.99),
        "refit_ms": percentile_interval(times.refit, 0.99),
        "update_ms": percentile_interval(times.update, 0.99),
    }
    return metrics, {name: interval for name, interval in intervals.items() if interval is not None}
