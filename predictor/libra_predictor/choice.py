"""Fits every estimator to a function's samples and takes, for each resource, the one that measures best.

All are measured on held-out calls: each call is answered by a model of the half of the window that it is not
in.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from libra_predictor.estimators import (
    DURATION_QUANTILE,
    HISTOGRAM,
    INHERITED,
    MEDIAN,
    MOVING_WINDOW,
    MOVING_WINDOW_CALLS,
    NO_ESTIMATOR,
    XGBOOST,
    Estimate,
    QuantileModel,
    class_model,
    class_models,
    cpu_time_median,
    cpu_time_model,
    cpu_timed,
    duration_histogram,
    duration_model,
    duration_moving_window,
    duration_quantile,
    histogram,
    microseconds,
    milliseconds,
    moving_window,
    timed,
    unlimited,
)
from libra_predictor.labels import Label, Resource, labels
from libra_predictor.observations import MAX_SIZE, UNKNOWN_SIZE, Sample
from libra_predictor.offset import covering
from libra_predictor.published import Answers
from libra_predictor.tables import constant, raised_from

# One in so many calls may be missed. A call that has too little CPU is slower until the safeguard helps; one
# that has too little memory may be killed.
_ONE_IN = 100
_ONE_IN_OF_UNRELATED = 50  # CPU only, of functions whose demand does not follow size
_RELATED = 0.75  # R² of the duration from which on a function's demand follows size
_ORDINARY = 0.98  # quantile of the durations; longer ones count as that in the R²
_GAIN = 0.9  # of a constant's loss: a model of the duration or the CPU time must stay below it
_ENOUGH_TO_ORDER = 3  # calls whose CPU time is known


@dataclass(frozen=True, slots=True)
class Fit:
    """The outcome of learning a function."""

    answers: Answers  # without the offset
    estimators: tuple[str, str, str]  # of CPU, memory and duration
    cpu_time_estimator: str
    # For CPU and memory, by position: the answer to each sample whose demand was seen, learned without that
    # sample. Those with inputs larger than all that was learned from then are missing.
    held_out: tuple[dict[int, int], dict[int, int]]
    censored: int  # calls
    gate: tuple[float, float, float] | None


def missable(explained: float | None) -> tuple[int, int]:
    """One in how many calls may be missed, of CPU and of memory.

    explained is the R² of a model of the duration, or None if there is none. Where size tells little, answers
    are near the largest needs, and covering the last few calls in a hundred takes much of what can be lent.
    """
    related = explained is None or explained >= _RELATED
    return _ONE_IN if related else _ONE_IN_OF_UNRELATED, _ONE_IN


@dataclass(frozen=True, slots=True)
class _Choice:
    """The best estimate of one resource."""

    estimate: Estimate
    held_out: dict[int, int]
    censored: frozenset[int]  # the calls of the window
    accuracy: float | None
    largest_size: int  # of the answers


def fit(
    samples: Sequence[Sample],
    resources: tuple[Resource, Resource],
    largest: tuple[int, int],
    estimator: str,
    inherited: Answers | None,
    durations: str = "predicted",
) -> Fit:
    """Learns from samples, oldest first. There must be at least one.

    estimator is "auto" or "moving-window", durations is "predicted" or "unlimited".
    """
    if estimator == MOVING_WINDOW:
        samples = [replace(sample, size=UNKNOWN_SIZE) for sample in samples]
    before: list[Estimate | None] = [None, None, None]
    if inherited is not None:
        tables = (inherited.cpu_milli, inherited.memory_bytes, inherited.duration_ms)
        before = [
            # Answers of 0 are those of a function that was not learned.
            Estimate(INHERITED, table, unknown) if unknown else None
            for table, unknown in zip(tables, inherited.unknown, strict=True)
        ]
    sizes_before = UNKNOWN_SIZE if inherited is None else inherited.largest_size
    duration, fitted = _duration(samples, estimator, before[2])
    cpu, memory = (
        _resource(samples, resource, most, one_in, estimator, old, sizes_before)
        for resource, most, one_in, old in zip(resources, largest, missable(fitted), before[:2], strict=True)
    )
    if durations == "unlimited":
        duration = unlimited()
    cpu_time = _cpu_time(samples, estimator, inherited)
    return Fit(
        answers=Answers(
            cpu.estimate.table,
            memory.estimate.table,
            duration.table,
            (cpu.estimate.unknown, memory.estimate.unknown, duration.unknown),
            cpu_time.table,
            cpu_time.unknown,
            min(cpu.largest_size, memory.largest_size),
        ),
        estimators=(cpu.estimate.estimator, memory.estimate.estimator, duration.estimator),
        cpu_time_estimator=cpu_time.estimator,
        held_out=(cpu.held_out, memory.held_out),
        censored=len(cpu.censored | memory.censored),
        gate=None
        if cpu.accuracy is None or memory.accuracy is None or fitted is None
        else (cpu.accuracy, memory.accuracy, fitted),
    )


def _folds(count: int) -> list[int]:
    """The half, 0 or 1, of each call: balanced, but without a period that the calls might have, too."""
    return [i.bit_count() % 2 for i in range(count)]


def _resource(
    samples: Sequence[Sample],
    resource: Resource,
    largest: int,
    one_in: int,
    estimator: str,
    inherited: Estimate | None,
    sizes_before: int,
) -> _Choice:
    if estimator == MOVING_WINDOW:
        return _moving_window(samples, resource, largest)
    found = labels([resource.use(sample) for sample in samples], resource.step, largest)
    own = [*class_models(found, class_model(found)), histogram(found)]
    answered: list[dict[int, int]] = [{} for _ in own]  # for each estimate: its answer to label i
    right: list[bool] = []
    judged: list[int] = []
    folds = _folds(len(found))
    for fold in (0, 1):
        rest = [label for label, of in zip(found, folds, strict=True) if of != fold]
        # Nothing is lent to inputs larger than all that was learned from, so they say nothing of the answers.
        largest_of_rest = max((label.size for label in rest), default=UNKNOWN_SIZE)
        held = [
            i
            for i, of in enumerate(folds)
            if of == fold and not found[i].censored and found[i].size <= largest_of_rest
        ]
        if not rest or not held:
            continue
        judged += held
        model = class_model(rest)
        halves = [*class_models(rest, model), histogram(rest)]
        if len(halves) == len(own):
            for answers, half in zip(answered, halves, strict=True):
                answers.update((i, half.at(found[i].size)) for i in held)
        sized = [found[i] for i in held if found[i].size != UNKNOWN_SIZE]
        if model is not None and sized:
            probable = model.most_probable(np.array([label.size for label in sized], dtype=np.int64))
            right += [label.option == option for label, option in zip(sized, probable.tolist(), strict=True)]
    if inherited is not None:
        own.append(inherited)
        judged = judged or [i for i, label in enumerate(found) if not label.censored]
        answered.append({i: inherited.at(found[i].size) for i in judged})
    best = min(range(len(own)), key=lambda i: _rank(found, answered[i], own[i], one_in))
    return _Choice(
        _tried(own[best], found),
        {found[i].use: answer for i, answer in answered[best].items()},
        _censored(found),
        sum(right) / len(right) if right else None,
        max(sizes_before if own[best] is inherited else UNKNOWN_SIZE, *(label.size for label in found)),
    )


def _moving_window(samples: Sequence[Sample], resource: Resource, largest: int) -> _Choice:
    """The largest demand of the last calls.

    A call that was censored at a lowered limit counts as needing all that the function was ever given, so
    that the next call gets its user allocation.
    """
    uses = [resource.use(sample) for sample in samples]
    given = max(use.limit for use in uses)
    lately = uses[-MOVING_WINDOW_CALLS:]
    found = [
        replace(label, option=resource.option(given))
        if label.censored and lately[label.use].limit < given
        else label
        for label in labels(lately, resource.step, largest)
    ]
    return _Choice(moving_window(found), {}, _censored(found), None, MAX_SIZE)


def _censored(found: Iterable[Label]) -> frozenset[int]:
    return frozenset(label.use for label in found if label.censored)


def _rank(
    found: Sequence[Label], answered: dict[int, int], estimate: Estimate, one_in: int
) -> tuple[float, float, bool]:
    """The lowest is best: it lends most once an offset makes it miss few calls."""
    if not answered:
        # Too few calls to measure: an estimate that needs no sizes is the safest.
        return (1.0, 0.0, estimate.estimator != HISTOGRAM)
    needed = [found[i].option for i in answered]
    raws = list(answered.values())
    offset = max(0, covering((need - raw for need, raw in zip(needed, raws, strict=True)), one_in))
    most = max(needed)
    offered = [max(raw, min(raw + offset, most)) for raw in raws]
    missed = sum(offer < need for offer, need in zip(offered, needed, strict=True)) / len(needed)
    spare = sum(max(0, offer - need) for offer, need in zip(offered, needed, strict=True)) / len(needed)
    return (0.0 if missed <= 1 / one_in else missed, spare, estimate.estimator != INHERITED)


def _tried(estimate: Estimate, found: Sequence[Label]) -> Estimate:
    """Raises an estimate to at least the next option to try for each demand not seen yet."""
    table, unknown = estimate.table, estimate.unknown
    for label in found:
        if label.censored:
            unknown = max(unknown, label.option)
            if label.size != UNKNOWN_SIZE:
                table = raised_from(table, label.size, label.option)
    return Estimate(estimate.estimator, table, unknown)


def _duration(
    samples: Sequence[Sample], estimator: str, inherited: Estimate | None
) -> tuple[Estimate, float | None]:
    """The estimate of the duration, and how well (R²) a model predicts held-out durations."""
    if estimator == MOVING_WINDOW:
        return duration_moving_window(timed(samples[-MOVING_WINDOW_CALLS:])), None
    own = timed(samples)
    without_size = duration_histogram(own)
    model = duration_model(own)
    if model is None:
        return without_size, None
    # Does size tell the duration? Compare the model with a constant, both at the model's quantile. The
    # histogram is served at a lower quantile, because then nothing tells the duration. Judged as served by
    # the loss of the model's quantile, it would lose to any model, and twice as many calls of the bench's
    # functions would end before they are predicted to. Judged by the loss of its own quantile, it would win
    # where size tells much, and leave no time to lend.
    actual = milliseconds(own)
    by_model, by_constant, medians = (np.zeros(len(own)) for _ in range(3))
    folds = np.array(_folds(len(own)))
    for fold in (0, 1):
        rest = [s for s, of in zip(own, folds, strict=True) if of != fold]
        half = duration_model(rest) if rest else None
        if half is None:
            return without_size, None
        held = np.flatnonzero(folds == fold)
        by_model[held] = [half.at(own[i].size) for i in held]
        by_constant[held] = duration_quantile(rest)
        sized = [s for s in rest if s.size != UNKNOWN_SIZE]
        middle = QuantileModel([s.size for s in sized], milliseconds(sized), MEDIAN)
        medians[held] = middle.evaluate(np.array([own[i].size for i in held], dtype=np.int64))
    losses = {XGBOOST: _loss(actual, by_model), HISTOGRAM: _loss(actual, by_constant) * _GAIN}
    best = min(losses, key=lambda name: losses[name])
    # A single call that was slow by chance would be most of the variance.
    longest = np.quantile(actual, _ORDINARY, method="lower")
    ordinary = np.minimum(actual, longest)
    spread = ((ordinary - ordinary.mean()) ** 2).sum()
    error = ((ordinary - np.minimum(medians, longest)) ** 2).sum()
    fitted = float(1 - error / spread) if spread > 0 else 1.0
    if inherited is not None:
        of_before = np.array([inherited.at(s.size) for s in own], dtype=np.float64)
        if _loss(actual, of_before) <= min(losses.values()):
            return inherited, fitted
    return (model if best == XGBOOST else without_size), fitted


def _loss(actual: np.ndarray, predicted: np.ndarray, quantile: float = DURATION_QUANTILE) -> float:
    """The quantile loss of the logarithms, so that long calls do not outweigh the others."""
    error = np.log(actual) - np.log(np.maximum(predicted, 1.0))
    return float(np.maximum(quantile * error, (quantile - 1) * error).mean())


def first_cpu_time(samples: Sequence[Sample]) -> Estimate:
    """The estimate until there is a fit. It only orders invocations, so a few calls are enough."""
    own = cpu_timed(samples)
    return cpu_time_median(own) if len(own) >= _ENOUGH_TO_ORDER else Estimate(NO_ESTIMATOR, constant(0), 0)


def _cpu_time(samples: Sequence[Sample], estimator: str, inherited: Answers | None) -> Estimate:
    """The estimate of the CPU time: the median, as errors up and down are equally bad for an order."""
    before = None
    if inherited is not None and inherited.unknown_cpu_time_us and estimator == "auto":
        before = Estimate(INHERITED, inherited.cpu_time_us, inherited.unknown_cpu_time_us)
    own = cpu_timed(samples)
    without_size = first_cpu_time(own)
    if without_size.estimator == NO_ESTIMATOR:
        return before or without_size
    if estimator == MOVING_WINDOW:
        return cpu_time_median(own[-MOVING_WINDOW_CALLS:], MOVING_WINDOW)
    model = cpu_time_model(own)
    if model is None:
        return without_size
    actual = microseconds(own)
    by_model, by_constant = (np.zeros(len(own)) for _ in range(2))
    folds = np.array(_folds(len(own)))
    for fold in (0, 1):
        rest = [s for s, of in zip(own, folds, strict=True) if of != fold]
        half = cpu_time_model(rest)
        if half is None:
            return without_size
        held = np.flatnonzero(folds == fold)
        by_model[held] = [half.at(own[i].size) for i in held]
        by_constant[held] = half.unknown
    losses = [
        (_loss(actual, by_model, MEDIAN), model),
        (_loss(actual, by_constant, MEDIAN) * _GAIN, without_size),
    ]
    if before is not None:
        of_before = np.array([before.at(s.size) for s in own], dtype=np.float64)
        losses.insert(0, (_loss(actual, of_before, MEDIAN), before))
    return min(losses, key=lambda measured: measured[0])[1]
