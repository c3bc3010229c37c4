"""The estimators of a function's demand, each of which ends up as a step table."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
import xgboost
from numpy.typing import NDArray

from libra_predictor.labels import Label, throttled
from libra_predictor.observations import MAX_DURATION_MS, UNKNOWN_SIZE, Sample
from libra_predictor.tables import Sizes, StepTable, constant, feature, merged, snapped, thresholds_of

_Number = TypeVar("_Number", int, float)

XGBOOST = "xgboost"
HISTOGRAM = "histogram"
MOVING_WINDOW = "moving-window"
INHERITED = "inherited"  # the previous revision's answers
NO_ESTIMATOR = "none"
UNLIMITED = "unlimited"  # durations that are not predicted

MOVING_WINDOW_CALLS = 5
CLASS_QUANTILES = (0.95, 0.99)
HISTOGRAM_PEAK = 0.99

DURATION_QUANTILE = 0.25  # low, so that no borrower is promised time that it may not get
MEDIAN = 0.5

_HISTOGRAM_DURATION = 0.05
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
class Estimate:
    """One estimator's answers for one resource, the duration or the CPU time."""

    estimator: str
    table: StepTable
    unknown: int  # for an input of unknown size

    def at(self, size: int) -> int:
        return self.unknown if size == UNKNOWN_SIZE else self.table.at(size)


class ClassModel:
    """The upper class quantile: the smallest option that suffices with a given probability."""

    def __init__(self, labels: Sequence[Label]) -> None:
        """The labels must have known sizes. There must be at least one."""
        self._sizes = np.array([label.size for label in labels], dtype=np.int64)
        labelled = np.array([label.option for label in labels], dtype=np.int64)
        self._labels: list[int] = labelled.tolist()
        self._options, classes = np.unique(labelled, return_inverse=True)
        self._trees = (
            _Trees(
                self._sizes,
                classes,
                objective="multi:softprob",
                num_class=len(self._options),
                # With XGBoost's default of 1, a class of a few samples is not told from its neighbours.
                min_child_weight=0.1,
            )
            if len(self._options) > 1
            else None
        )

    def evaluate(self, sizes: Sizes, quantile: float) -> Sizes:
        if self._trees is None:
            return np.full(sizes.shape, self._options[0])
        return self._sufficient(self._trees.predict(sizes), quantile)

    def _sufficient(self, probabilities: NDArray[np.float64], quantile: float) -> Sizes:
        short = (np.cumsum(probabilities, axis=1) < quantile).sum(axis=1)
        answer: Sizes = self._options[np.minimum(short, len(self._options) - 1)]
        return answer

    def most_probable(self, sizes: Sizes) -> Sizes:
        if self._trees is None:
            return np.full(sizes.shape, self._options[0])
        answer: Sizes = self._options[self._trees.predict(sizes).argmax(axis=1)]
        return answer

    def exact_table(self, quantile: float) -> StepTable:
        """The table of evaluate's answers at every size."""
        if self._trees is None:
            return constant(int(self._options[0]))
        return self._trees.tabulated(lambda probabilities: self._sufficient(probabilities, quantile))

    def table(self, quantile: float) -> StepTable:
        """The exact table with its steps moved so that a wrong answer errs upward."""
        return snapped(self.exact_table(quantile), self._sizes.tolist(), self._labels)


class QuantileModel:
    """A quantile of an amount, learned from its logarithm and never beyond the amounts seen."""

    def __init__(
        self, sizes: Sequence[int], amounts: NDArray[np.float64], quantile: float = DURATION_QUANTILE
    ) -> None:
        logarithms = np.log(amounts)
        self._least, self._most = float(logarithms.min()), float(logarithms.max())
        self._trees = _Trees(
            np.array(sizes, dtype=np.int64),
            logarithms,
            objective="reg:quantileerror",
            quantile_alpha=quantile,
        )

    def evaluate(self, sizes: Sizes) -> Sizes:
        return self._amounts(self._trees.predict(sizes))

    def _amounts(self, logarithms: NDArray[np.float64]) -> Sizes:
        return np.rint(np.exp(np.clip(logarithms, self._least, self._most))).astype(np.int64)

    def table(self) -> StepTable:
        return self._trees.tabulated(self._amounts)


def ranked(values: Sequence[_Number], share: float) -> _Number:
    """The least value that at least a share of the values does not exceed. There must be at least one."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def moving_window(labels: Sequence[Label]) -> Estimate:
    """The paper's ablation without a profiler: the largest of the last calls' labels, at least one."""
    most = max(label.option for label in labels)
    return Estimate(MOVING_WINDOW, constant(most), most)


def histogram(labels: Sequence[Label]) -> Estimate:
    """The upper rank of the options, the largest of fewer than 100. There must be at least one label."""
    most = ranked([label.option for label in labels], HISTOGRAM_PEAK)
    return Estimate(HISTOGRAM, constant(most), _unknown(labels))


def class_models(labels: Sequence[Label], model: ClassModel | None) -> list[Estimate]:
    """One estimate for each class quantile; none without a model, when no size is known."""
    if model is None:
        return []
    unknown = _unknown(labels)
    return [Estimate(XGBOOST, table, unknown) for table in map(model.table, CLASS_QUANTILES)]


def class_model(labels: Sequence[Label]) -> ClassModel | None:
    sized = [label for label in labels if label.size != UNKNOWN_SIZE]
    return ClassModel(sized) if sized else None


def _unknown(labels: Sequence[Label]) -> int:
    """Enough for all calls together, and for those of unknown size alone, in case they differ."""
    unsized = [label.option for label in labels if label.size == UNKNOWN_SIZE]
    everything = ranked([label.option for label in labels], HISTOGRAM_PEAK)
    return max(everything, ranked(unsized, HISTOGRAM_PEAK)) if unsized else everything


def timed(samples: Sequence[Sample]) -> list[Sample]:
    """The samples whose duration was the function's own and not due to a limit.

    Samples with inputs larger than any of those stay in, with the duration that they had. Without them, a
    function that is only fast enough for small inputs would seem fast for all, and never worth a loan.
    """
    largest_own = max((s.size for s in samples if not throttled(s)), default=UNKNOWN_SIZE - 1)
    return [s for s in samples if not throttled(s) or s.size > largest_own]


def milliseconds(samples: Sequence[Sample]) -> NDArray[np.float64]:
    return np.maximum(np.array([s.duration_ns for s in samples], dtype=np.float64) / 1e6, 1.0)


def duration_quantile(samples: Sequence[Sample]) -> int:
    """The answer of a model that knows no size. There must be at least one sample."""
    return int(np.rint(np.quantile(milliseconds(samples), DURATION_QUANTILE)))


def duration_model(samples: Sequence[Sample]) -> Estimate | None:
    sized = [s for s in samples if s.size != UNKNOWN_SIZE]
    if not sized:
        return None
    model = QuantileModel([s.size for s in sized], milliseconds(sized))
    return Estimate(XGBOOST, model.table(), duration_quantile(samples))


def duration_histogram(samples: Sequence[Sample]) -> Estimate:
    least = ranked([int(d) for d in milliseconds(samples)], _HISTOGRAM_DURATION)
    return Estimate(HISTOGRAM, constant(least), least)


def duration_moving_window(samples: Sequence[Sample]) -> Estimate:
    """The shortest of the last calls. The paper takes the longest, which may promise borrowers too much."""
    least = int(milliseconds(samples).min())
    return Estimate(MOVING_WINDOW, constant(least), least)


def unlimited() -> Estimate:
    """The longest duration that the activator accepts, so that no donor ends too soon to borrow from."""
    return Estimate(UNLIMITED, constant(MAX_DURATION_MS), MAX_DURATION_MS)


def cpu_timed(samples: Sequence[Sample]) -> list[Sample]:
    """The samples whose CPU time is known and complete.

    Samples that a CPU limit throttled are among them: they took longer, but used no more CPU time.
    """
    return [s for s in samples if s.cpu_time_ns and not s.failed]


def microseconds(samples: Sequence[Sample]) -> NDArray[np.float64]:
    return np.maximum(np.array([s.cpu_time_ns for s in samples], dtype=np.float64) / 1e3, 1.0)


def cpu_time_median(samples: Sequence[Sample], estimator: str = HISTOGRAM) -> Estimate:
    """The median of samples whose CPU time is known. There must be at least one."""
    median = int(np.rint(np.median(microseconds(samples))))
    return Estimate(estimator, constant(median), median)


def cpu_time_model(samples: Sequence[Sample]) -> Estimate | None:
    """A model of samples whose CPU time is known; None if none has a known size."""
    sized = [s for s in samples if s.size != UNKNOWN_SIZE]
    if not sized:
        return None
    model = QuantileModel([s.size for s in sized], microseconds(sized), MEDIAN)
    return Estimate(XGBOOST, model.table(), cpu_time_median(samples).unknown)


class _Trees:
    """A tree ensemble on one feature, the size."""

    def __init__(
        self, sizes: Sizes, targets: NDArray[np.int64] | NDArray[np.float64], **parameters: object
    ) -> None:
        self.smallest, self.largest = int(sizes.min()), int(sizes.max())
        rows = xgboost.DMatrix(feature(sizes).reshape(-1, 1), label=targets, nthread=1)
        # xgboost.train ends by dropping its caches, which takes as long as a third of the training.
        self._booster = xgboost.Booster({**_PARAMETERS, **parameters}, [rows])
        for boosting_round in range(_ROUNDS):
            self._booster.update(rows, boosting_round)
        self.splits: NDArray[np.float32] = rows.get_quantile_cut()[1]  # all that a tree can have

    def predict(self, sizes: Sizes) -> NDArray[np.float64]:
        """Predicts; a size beyond those learned from counts as the nearest of them."""
        rows = feature(np.clip(sizes, self.smallest, self.largest)).reshape(-1, 1)
        predicted: NDArray[np.float32] = self._booster.inplace_predict(rows)
        return predicted.astype(np.float64)

    def tabulated(self, answers: Callable[[NDArray[np.float64]], Sizes]) -> StepTable:
        """The table of the answers that are made of the trees' predictions."""
        thresholds, predicted = self._steps
        return merged(thresholds, answers(predicted).tolist())

    @cached_property
    def _steps(self) -> tuple[list[int], NDArray[np.float64]]:
        """All thresholds, and the predictions below the first and from each one on."""
        thresholds = thresholds_of(self.splits, self.smallest, self.largest)
        return thresholds, self.predict(np.array([self.smallest, *thresholds], dtype=np.int64))
