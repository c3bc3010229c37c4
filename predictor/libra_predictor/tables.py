"""Step tables: with one input feature a tree ensemble is a step function of the input size.

The predictor answers from its tables and hands the same ones to its clients, so there is no second evaluation
that could disagree.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Sizes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepTable:
    """The value at a size is the one whose index is the number of thresholds <= size."""

    thresholds: tuple[int, ...]  # bytes, ascending
    values: tuple[int, ...]  # one more than thresholds

    def __post_init__(self) -> None:
        if len(self.values) != len(self.thresholds) + 1:
            raise ValueError(
                f"{len(self.thresholds)} thresholds need {len(self.thresholds) + 1} values, not"
                f" {len(self.values)}"
            )
        if any(a >= b for a, b in pairwise(self.thresholds)):
            raise ValueError(f"thresholds {self.thresholds} do not ascend")

    def at(self, size: int) -> int:
        return self.values[bisect_right(self.thresholds, size)]


def constant(value: int) -> StepTable:
    return StepTable((), (value,))


def merged(thresholds: Sequence[int], values: Sequence[int]) -> StepTable:
    """A table without the steps that change nothing."""
    steps = [
        (threshold, value)
        for threshold, (before, value) in zip(thresholds, pairwise(values), strict=True)
        if value != before
    ]
    return StepTable(tuple(t for t, _ in steps), (values[0], *(v for _, v in steps)))


def feature(sizes: Sizes) -> NDArray[np.float32]:
    """The feature that the trees split on. They compare in float32, so many large sizes share one."""
    return np.log1p(sizes.astype(np.float64)).astype(np.float32)


def thresholds_of(splits: NDArray[np.float32], smallest: int, largest: int) -> list[int]:
    """The smallest size in (smallest, largest] whose feature reaches a split, for each split that has one."""
    splits = np.unique(splits)
    least, most = feature(np.array([smallest, largest], dtype=np.int64))
    splits = splits[(splits > least) & (splits <= most)]
    below = np.full(splits.shape, smallest, dtype=np.int64)
    reaches = np.full(splits.shape, largest, dtype=np.int64)
    for _ in range(math.ceil(math.log2(max(2, largest - smallest)))):
        middle = (below + reaches) // 2
        reached = feature(middle) >= splits
        reaches = np.where(reached, middle, reaches)
        below = np.where(reached, below, middle)
    return sorted({int(t) for t in reaches})


def snapped(table: StepTable, sizes: Sequence[int], labels: Sequence[int]) -> StepTable:
    """Moves each upward step down to just above the last training sample of the lower class.

    A tree may put its step anywhere between two samples. Here, a size that was never seen gets the larger
    answer, and so does an interval without a sample of its own class or a lower one.
    """
    samples = sorted(zip(sizes, labels, strict=True), reverse=True)
    steps: list[tuple[int, int]] = []  # threshold and the value from it on, descending
    above = table.values[-1]
    for i in reversed(range(len(table.thresholds))):
        threshold, value = table.thresholds[i], table.values[i]
        if value < above:
            start = table.thresholds[i - 1] if i > 0 else 0
            last = next((s for s, label in samples if start <= s < threshold and label <= value), None)
            if last is None:
                continue
            threshold = last + 1
        steps.append((threshold, above))
        above = value
    steps.reverse()
    return merged([t for t, _ in steps], [above, *(v for _, v in steps)])


def raised_from(table: StepTable, size: int, floor: int) -> StepTable:
    """The table with every value from a size on raised to at least floor."""
    thresholds = sorted({*table.thresholds, size})
    values = [table.values[0], *(max(table.at(t), floor if t >= size else 0) for t in thresholds)]
    return merged(thresholds, values)
