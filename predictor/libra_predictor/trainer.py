"""Learns a function's demand from its samples: how they are labelled, and the three models."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xgboost
from numpy.typing import NDArray

from libra_predictor.observations import UNKNOWN_SIZE, Sample
from libra_predictor.tables import Sizes, StepTable, constant, feature, raised, snapped, tabulated

CPU_STEP_MILLI = 100
MEMORY_STEP_BYTES = 64 << 20

_CLASS_QUANTILE = 0.95
_DURATION_QUANTILE = 0.25
_THROTTLED_SHARE = 0.05
_NEAR_CPU_LIMIT = 0.8
_NEAR_MEMORY_LIMIT = 0.95
_ROUNDS = 20
_PARAMETERS = {
    "tree_method": "hist",
    "max_depth": 3,
    "eta": 0.3,
    "nthread": 1,  # more threads make a model this small ten times slower
    "verbosity": 0,
    "seed": 0,
}


@dataclass(frozen=True, slots=True)
class Label:
    """A sample's class as the option, in units of the resource, that would have held it."""

    size: int
    option: int
    censored: bool


@dataclass(frozen=True, slots=True)
class Answers:
    """All that the predictor knows of a function."""

    cpu_milli: StepTable
    memory_bytes: StepTable
    duration_ms: StepTable
    unknown: tuple[int, int, int]  # cpu_milli, memory_bytes, duration_ms of an input of unknown size


@dataclass(frozen=True, slots=True)
class Fit:
    """The outcome of a training, and of how many samples the demand could not be seen."""

    answers: Answers
    censored: int


@dataclass(frozen=True, slots=True)
class _Use:
    """One sample's use of one resource."""

    size: int
    peak: int
    limit: int  # 0 when there is none
    censored: bool


def option(volume: int, step: int) -> int:
    """The smallest option that holds a volume."""
    return max(1, -(-volume // step)) * step


def _labels(uses: Sequence[_Use], step: int, largest: int) -> list[Label]:
    """Labels the uses, oldest first.

    What a throttled invocation wanted cannot be seen, only that it wanted more: its label is the next size
    to try, twice what it had. It says nothing any more once the demand of as large an input was seen.
    """
    labels: list[Label] = []
    # The largest size that was later seen uncensored, apart for known and for unknown sizes.
    superseding = {True: UNKNOWN_SIZE - 1, False: UNKNOWN_SIZE - 1}
    for use in reversed(uses):
        known = use.size != UNKNOWN_SIZE
        wanted = use.peak
        if use.censored:
            if use.size <= superseding[known]:
                continue
            wanted = max(use.peak, use.limit, min(2 * use.limit, largest))
        else:
            superseding[known] = max(superseding[known], use.size)
        labels.append(Label(use.size, option(wanted, step), use.censored))
    labels.reverse()
    return labels


def cpu_labels(samples: Sequence[Sample], largest_milli: int) -> list[Label]:
    return _labels(
        [
            _Use(
                s.size,
                s.peak_cpu_milli,
                s.limit_cpu_milli,
                s.limit_cpu_milli > 0
                and s.throttled_share >= _THROTTLED_SHARE
                and s.peak_cpu_milli >= _NEAR_CPU_LIMIT * s.limit_cpu_milli,
            )
            for s in samples
        ],
        CPU_STEP_MILLI,
        largest_milli,
    )


def memory_labels(samples: Sequence[Sample], largest_bytes: int) -> list[Label]:
    return _labels(
        [
            _Use(
                s.size,
                s.peak_memory_bytes,
                s.limit_memory_bytes,
                s.limit_memory_bytes > 0 and s.peak_memory_bytes >= _NEAR_MEMORY_LIMIT * s.limit_memory_bytes,
            )
            for s in samples
        ],
        MEMORY_STEP_BYTES,
        largest_bytes,
    )


class ClassModel:
    """The upper class quantile: the smallest option that suffices with a probability of 0.95."""

    def __init__(self, labels: Sequence[Label]) -> None:
        self._sizes = np.array([label.size for label in labels], dtype=np.int64)
        options = np.array([label.option for label in labels], dtype=np.int64)
        self._options, classes = np.unique(options, return_inverse=True)
        self._labels = options.tolist()
        self._booster = (
            _train(
                self._sizes,
                classes,
                objective="multi:softprob",
                num_class=len(self._options),
                # With XGBoost's 1, a class of a few samples is not told from its neighbours.
                min_child_weight=0.5,
            )
            if len(self._options) > 1
            else None
        )

    def evaluate(self, sizes: Sizes) -> Sizes:
        if self._booster is None:
            return np.full(sizes.shape, self._options[0])
        probability = _predict(self._booster, sizes, self._sizes).astype(np.float64)
        short = (np.cumsum(probability, axis=1) < _CLASS_QUANTILE).sum(axis=1)
        quantile: Sizes = self._options[np.minimum(short, len(self._options) - 1)]
        return quantile

    def splits(self) -> NDArray[np.float32]:
        return _splits(self._booster)

    def table(self) -> StepTable:
        exact = tabulated(self.evaluate, self.splits(), int(self._sizes.min()), int(self._sizes.max()))
        return snapped(exact, self._sizes.tolist(), self._labels)


class DurationModel:
    """The lower quantile of the duration, so that a borrower is not promised time that its donor lacks."""

    def __init__(self, sizes: Sequence[int], durations_ns: Sequence[int]) -> None:
        self._sizes = np.array(sizes, dtype=np.int64)
        target = np.log(_milliseconds(durations_ns))
        self._booster = _train(
            self._sizes, target, objective="reg:quantileerror", quantile_alpha=_DURATION_QUANTILE
        )

    def evaluate(self, sizes: Sizes) -> Sizes:
        predicted = np.exp(_predict(self._booster, sizes, self._sizes).astype(np.float64))
        return np.rint(predicted).astype(np.int64)

    def splits(self) -> NDArray[np.float32]:
        return _splits(self._booster)

    def table(self) -> StepTable:
        return tabulated(self.evaluate, self.splits(), int(self._sizes.min()), int(self._sizes.max()))


def fit(samples: Sequence[Sample], largest_cpu_milli: int, largest_memory_bytes: int) -> Fit:
    """Trains a function's models on its samples, oldest first; there is at least one."""
    cpu = cpu_labels(samples, largest_cpu_milli)
    memory = memory_labels(samples, largest_memory_bytes)
    # A container on cgroup v1 must never be set below what its function was seen to use, whatever the size.
    memory_floor = option(max(s.peak_memory_bytes for s in samples), MEMORY_STEP_BYTES)
    unknown = (
        max(label.option for label in cpu),
        max(memory_floor, *(label.option for label in memory)),
        int(
            np.rint(np.quantile(_milliseconds([s.duration_ns for s in _timed(samples)]), _DURATION_QUANTILE))
        ),
    )
    return Fit(
        Answers(
            cpu_milli=_class_table(cpu, unknown[0]),
            memory_bytes=raised(_class_table(memory, unknown[1]), memory_floor),
            duration_ms=_duration_table(samples, unknown[2]),
            unknown=unknown,
        ),
        censored=sum(label.censored for label in cpu) + sum(label.censored for label in memory),
    )


def _class_table(labels: Sequence[Label], without_sizes: int) -> StepTable:
    sized = [label for label in labels if label.size != UNKNOWN_SIZE]
    return ClassModel(sized).table() if sized else constant(without_sizes)


def _duration_table(samples: Sequence[Sample], without_sizes: int) -> StepTable:
    sized = _timed([s for s in samples if s.size != UNKNOWN_SIZE])
    if not sized:
        return constant(without_sizes)
    return DurationModel([s.size for s in sized], [s.duration_ns for s in sized]).table()


def _timed(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The samples whose duration was the function's own and not its limit's.

    Inputs larger than any of those stay in with the duration that they had: without them a function that is
    only fast enough for small inputs would be taken to be fast for all, and never worth a loan.
    """
    own = [s.size for s in samples if s.throttled_share < _THROTTLED_SHARE]
    largest_own = max(own, default=UNKNOWN_SIZE - 1)
    return [s for s in samples if s.throttled_share < _THROTTLED_SHARE or s.size > largest_own]


def _milliseconds(durations_ns: Sequence[int]) -> NDArray[np.float64]:
    return np.maximum(np.array(durations_ns, dtype=np.float64) / 1e6, 1.0)


def _train(
    sizes: Sizes, labels: NDArray[np.int64] | NDArray[np.float64], **parameters: object
) -> xgboost.Booster:
    rows = xgboost.DMatrix(feature(sizes).reshape(-1, 1), label=labels, nthread=1)
    return xgboost.train({**_PARAMETERS, **parameters}, rows, num_boost_round=_ROUNDS)


def _predict(booster: xgboost.Booster, sizes: Sizes, seen: Sizes) -> NDArray[np.float32]:
    rows = feature(np.clip(sizes, seen.min(), seen.max())).reshape(-1, 1)
    predicted: NDArray[np.float32] = booster.inplace_predict(rows)
    return predicted


def _splits(booster: xgboost.Booster | None) -> NDArray[np.float32]:
    """The features that any tree of the ensemble compares with."""
    if booster is None:
        return np.array([], dtype=np.float32)
    model = json.loads(booster.save_raw("json"))
    return np.array(
        [
            condition
            for tree in model["learner"]["gradient_booster"]["model"]["trees"]
            for condition, left in zip(tree["split_conditions"], tree["left_children"], strict=True)
            if left != -1
        ],
        dtype=np.float32,
    )
