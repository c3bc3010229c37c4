"""Whether a function's calls are still like those that it was learned from."""

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

import numpy as np

from libra_predictor.estimators import DURATION_QUANTILE, MEDIAN
from libra_predictor.history import Call
from libra_predictor.labels import Resource, throttled
from libra_predictor.published import Answers

_FEWEST = 20  # calls that tell anything
_DEVIATIONS = 3.5  # beyond which a difference does not count as chance
_LEAST_SHIFT = 1.0  # options: even without a shift, models differ in how much they spare


def shifted(
    spare: Sequence[Sequence[float]], newer: Sequence[Call], answers: Answers, resources: Sequence[Resource]
) -> bool:
    """Whether the newer calls need less than the answers expect, or take other times, by more than chance.

    spare is, for each resource, by how many options answers exceeded the needs of calls not learned from. A
    call that needs more than its answer is noticed when it is observed, and needs no statistics. Times are
    compared with the quantiles that the answers stand for.
    """
    return (
        any(
            _grown(expected, list(spared(((call, _raw(call, i)) for call in newer), resource)))
            for i, (resource, expected) in enumerate(zip(resources, spare, strict=True))
        )
        or abs(_beyond(list(_above_cpu_time(newer, answers)), MEDIAN)) > _DEVIATIONS
        # A duration that is too low promises no borrower time that it may not get.
        or _beyond(list(_above_duration(newer, answers)), DURATION_QUANTILE) > _DEVIATIONS
    )


def spared(calls: Iterable[tuple[Call, int]], resource: Resource) -> Iterator[float]:
    """Answer less need, in options, of the calls that were answered and whose demand was seen."""
    for call, answer in calls:
        use = resource.use(call.sample)
        if answer and not use.censored and not use.failed:
            yield (answer - resource.option(use.peak)) / resource.step


def _raw(call: Call, resource: int) -> int:
    return (call.cpu_milli, call.memory_bytes)[resource]


def _above_cpu_time(calls: Sequence[Call], answers: Answers) -> Iterator[float]:
    for call in calls:
        sample = call.sample
        answer = 1000 * answers.cpu_time_at(sample.size)
        if answer and sample.cpu_time_ns and not sample.failed:
            # A tie is on neither side of the median.
            yield 0.5 if answer == sample.cpu_time_ns else float(answer > sample.cpu_time_ns)


def _above_duration(calls: Sequence[Call], answers: Answers) -> Iterator[float]:
    for call in calls:
        sample = call.sample
        answer = 1_000_000 * answers.at(sample.size)[2]
        if answer and not throttled(sample):
            yield float(answer > max(sample.duration_ns, 1_000_000))


def _grown(expected: Sequence[float], newer: Sequence[float]) -> bool:
    if min(len(expected), len(newer)) < _FEWEST:
        return False
    before, after = fmean(expected), fmean(newer)
    chance = math.sqrt(np.var(expected, ddof=1) / len(expected) + np.var(newer, ddof=1) / len(newer))
    return after - before > max(_LEAST_SHIFT, _DEVIATIONS * chance)


def _beyond(above: Sequence[float], expected: float) -> float:
    """By how many standard deviations the share of calls above exceeds the expected share."""
    if len(above) < _FEWEST:
        return 0.0
    return (fmean(above) - expected) / math.sqrt(expected * (1 - expected) / len(above))
