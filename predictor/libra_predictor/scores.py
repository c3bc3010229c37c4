"""Metrics of how right the answers were: in all, and for each function that is learned here."""

from collections.abc import Iterator
from typing import Final
from weakref import WeakSet

from opentelemetry.metrics import CallbackOptions, Observation, get_meter

from libra_predictor.function import Scored

MOST_FUNCTIONS: Final = 999  # with series of their own: OpenTelemetry keeps 2,000 sets of labels apart
_SERIES: Final = 2 * MOST_FUNCTIONS  # of each metric; those of OTHERS come on top
OTHERS: Final = "others"  # no function's name, which has a namespace

_meter = get_meter("libra_predictor")
# A histogram ignores values below 0, so there is one for too high and one for too low.
_spare = _meter.create_histogram(
    "libra.predictor.spare",
    unit="{option}",
    description="Options by which answers were too high, or 0, on calls not yet learned from, by `resource`.",
    explicit_bucket_boundaries_advisory=[0, 1, 2, 4, 8, 16],
)
_short = _meter.create_histogram(
    "libra.predictor.short",
    unit="{option}",
    description="Options by which answers were too low, or 0, on calls not yet learned from, by `resource`.",
    explicit_bucket_boundaries_advisory=[0, 1, 2, 4, 8, 16],
)
_durations = _meter.create_histogram(
    "libra.predictor.duration.answered",
    unit="1",
    description="Answered / actual duration of calls not yet learned from.",
    explicit_bucket_boundaries_advisory=[0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.25, 1.5, 2, 3],
)

_cpu_times = _meter.create_histogram(
    "libra.predictor.cpu_time.answered",
    unit="1",
    description="Answered / used CPU time of calls not yet learned from.",
    explicit_bucket_boundaries_advisory=[0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 4, 8],
)


class _Score:
    """One resource of one function."""

    __slots__ = ("calls", "error", "missed")

    def __init__(self) -> None:
        self.calls = 0
        self.missed = 0
        self.error = 0.0  # of the last call, in options


class Scores:
    """Counts since this replica began to learn: for each of the first functions, and for all others."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, str], _Score] = {}
        _all.add(self)

    def add(self, function: str, scored: Scored) -> None:
        for resource, missed, error in (
            ("cpu", scored.missed_cpu, scored.error_cpu),
            ("memory", scored.missed_memory, scored.error_memory),
        ):
            if missed is None:
                continue
            score = self._score(function, resource)
            score.calls += 1
            score.missed += missed
            if error is not None:
                score.error = error
                _spare.record(max(error, 0), {"resource": resource})
                _short.record(max(-error, 0), {"resource": resource})
        if scored.error_duration is not None:
            _durations.record(1 + scored.error_duration)
        if scored.ratio_cpu_time is not None:
            _cpu_times.record(scored.ratio_cpu_time)

    def _score(self, function: str, resource: str) -> _Score:
        score = self.of.get((function, resource))
        if score is None:
            # A set of labels that was reported once keeps its place, even after the function is dropped.
            key = (function, resource)
            if key not in _ever and len(_ever) >= _SERIES:
                return self.of.setdefault((OTHERS, resource), _Score())
            _ever.add(key)
            score = self.of.setdefault(key, _Score())
        return score

    def drop(self, function: str) -> None:
        for resource in ("cpu", "memory"):
            self.of.pop((function, resource), None)

    def clear(self) -> None:
        self.of.clear()


_all: WeakSet[Scores] = WeakSet()
_ever: set[tuple[str, str]] = set()  # functions and resources that have had series since the process began


def _each() -> Iterator[tuple[_Score, dict[str, str]]]:
    for scores in _all:
        for (function, resource), score in list(scores.of.items()):
            yield score, {"function": function, "resource": resource}


def _calls(_: CallbackOptions) -> Iterator[Observation]:
    return (Observation(score.calls, attributes) for score, attributes in _each())


def _missed(_: CallbackOptions) -> Iterator[Observation]:
    return (Observation(score.missed, attributes) for score, attributes in _each())


def _last_errors(_: CallbackOptions) -> Iterator[Observation]:
    return (Observation(score.error, attributes) for score, attributes in _each())


_meter.create_observable_counter(
    "libra.predictor.calls",
    [_calls],
    unit="{call}",
    description="Calls whose demand was seen, or seen to exceed the answer, by `function` and `resource`.",
)
_meter.create_observable_counter(
    "libra.predictor.under_predictions",
    [_missed],
    unit="{call}",
    description="Calls that needed a larger option than the answer, by `function` and `resource`.",
)
_meter.create_observable_gauge(
    "libra.predictor.last_error",
    [_last_errors],
    unit="{option}",
    description="Answer minus need, in options, of the last call compared, by `function` and `resource`.",
)
