"""Compares the tables with the boosters that they were made from."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bench.calls import Calls, Say
from bench.learner import class_model, sample
from bench.zygote import Call
from libra_predictor.estimators import (
    CLASS_QUANTILES,
    DURATION_QUANTILE,
    MEDIAN,
    QuantileModel,
    microseconds,
    milliseconds,
)
from libra_predictor.observations import MAX_SIZE
from libra_predictor.tables import Sizes, StepTable

COMPARISONS = 1_500_000

_NEAR = 2  # sizes tried on each side of a threshold


@dataclass(frozen=True, slots=True)
class Exactness:
    comparisons: int
    mismatches: int  # table against booster
    lowered: int  # answers that snapping made lower; it may only raise


def compared(calls: Calls, train: int, comparisons: int, say: Say) -> Exactness:
    """Tries about that many sizes in all: around every threshold, at the float edges, and at random."""
    trained = [made[:train] for by_name in calls.values() for made in by_name.values()]
    each = -(-comparisons // (len(trained) * (2 * len(CLASS_QUANTILES) + 2)))
    rng = np.random.default_rng(0)
    done = mismatches = lowered = 0
    for i, of_function in enumerate(trained):
        for found in _compared(of_function, each, rng):
            done += found.comparisons
            mismatches += found.mismatches
            lowered += found.lowered
        if (i + 1) % 10 == 0:
            say(f"tables of {i + 1} of {len(trained)} trainings compared: {done} comparisons")
    return Exactness(done, mismatches, lowered)


def sizes_to_try(table: StepTable, count: int, rng: np.random.Generator) -> Sizes:
    """The sizes where an error would show, and if there are steps, random ones around them, up to count."""
    edges = {0, 1, MAX_SIZE, 1 << 24, (1 << 24) + 1}
    for threshold in table.thresholds:
        edges.update(range(threshold - _NEAR, threshold + _NEAR + 1))
    for low, high in pairwise(table.thresholds):
        edges.add((low + high) // 2)
    fixed = np.array(sorted(e for e in edges if 0 <= e <= MAX_SIZE), dtype=np.int64)
    if not table.thresholds:
        return fixed
    low, high = np.log([max(1, table.thresholds[0] // 2), min(MAX_SIZE, 2 * table.thresholds[-1])])
    drawn = np.exp(rng.uniform(low, high, max(0, count - len(fixed)))).astype(np.int64)
    return np.concatenate([fixed, drawn])


def _compared(of_function: Sequence[Call], count: int, rng: np.random.Generator) -> list[Exactness]:
    found = []
    for resource in range(2):
        model = class_model(of_function, resource)
        for quantile in CLASS_QUANTILES:
            exact = model.exact_table(quantile)
            sizes = sizes_to_try(exact, count, rng)
            found.append(_matched(exact, model.table(quantile), sizes, model.evaluate(sizes, quantile)))
    samples = [sample(call) for call in of_function]
    for amounts, quantile in ((milliseconds, DURATION_QUANTILE), (microseconds, MEDIAN)):
        times = QuantileModel([s.size for s in samples], amounts(samples), quantile)
        table = times.table()
        sizes = sizes_to_try(table, count, rng)
        found.append(_matched(table, table, sizes, times.evaluate(sizes)))
    return found


def _matched(exact: StepTable, safe: StepTable, sizes: Sizes, answers: Sizes) -> Exactness:
    asked = sizes.tolist()
    looked_up = np.array([exact.at(size) for size in asked], dtype=np.int64)
    published = np.array([safe.at(size) for size in asked], dtype=np.int64)
    return Exactness(len(asked), int((looked_up != answers).sum()), int((published < answers).sum()))
