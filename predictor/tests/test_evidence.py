"""Evidence that calls are unlike those before: for every answer, and seldom by chance."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from libra_predictor import labels
from libra_predictor.evidence import shifted, spared
from libra_predictor.history import Call
from libra_predictor.labels import Resource
from libra_predictor.observations import Sample
from libra_predictor.published import Answers
from libra_predictor.tables import constant

MI = 1 << 20
RESOURCES = (Resource(labels.cpu, 100, 2000), Resource(labels.memory, 64 * MI, 1024 * MI))
# For the calls below, the duration is a lower quartile and the CPU time a median.
ANSWERS = Answers(
    constant(900), constant(448 * MI), constant(80), (900, 448 * MI, 80), constant(50_000), 50_000
)

Change = Callable[[Sample], Sample]


def call(draw: random.Random) -> Call:
    def spread(median: float) -> float:
        return median * draw.lognormvariate(0, 0.33)

    sample = Sample(
        size=1000,
        duration_ns=int(spread(100e6)),
        peak_cpu_milli=int(spread(400)),
        peak_memory_bytes=int(spread(200 * MI)),
        limit_cpu_milli=0,
        limit_memory_bytes=0,
        throttled_share=0.0,
        cpu_time_ns=int(spread(50e6)),
    )
    return Call(sample, 900, 448 * MI)


def spare(calls: Sequence[Call]) -> list[list[float]]:
    answers = ([c.cpu_milli for c in calls], [c.memory_bytes for c in calls])
    return [list(spared(zip(calls, a, strict=True), r)) for a, r in zip(answers, RESOURCES, strict=True)]


def found(change: Change, newer: int, seeds: int = 200) -> float:
    """How often a change of the newer calls is found."""
    count = 0
    for seed in range(seeds):
        draw = random.Random(seed)  # noqa: S311
        known = [call(draw) for _ in range(160)]
        changed = [replace(c, sample=change(c.sample)) for c in (call(draw) for _ in range(newer))]
        count += shifted(spare(known), changed, ANSWERS, RESOURCES)
    return count / seeds


@pytest.mark.parametrize("newer", [20, 30, 40])
def test_chance_is_seldom_taken_for_a_change(newer: int) -> None:
    assert found(lambda sample: sample, newer) <= 0.01


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda s: replace(s, peak_memory_bytes=s.peak_memory_bytes // 2), id="less memory"),
        pytest.param(lambda s: replace(s, peak_cpu_milli=s.peak_cpu_milli // 2), id="less CPU"),
        pytest.param(lambda s: replace(s, duration_ns=s.duration_ns // 2), id="shorter"),
        pytest.param(lambda s: replace(s, cpu_time_ns=int(1.6 * s.cpu_time_ns)), id="more CPU time"),
        pytest.param(lambda s: replace(s, cpu_time_ns=int(0.6 * s.cpu_time_ns)), id="less CPU time"),
    ],
)
def test_a_change_is_found_within_forty_calls(change: Change) -> None:
    assert found(change, 40) >= 0.95


def test_longer_calls_harm_nobody() -> None:
    assert found(lambda s: replace(s, duration_ns=4 * s.duration_ns), 40) <= 0.02


def test_answers_that_spare_less_than_before_are_no_change() -> None:
    draw = random.Random(1)  # noqa: S311
    known = [replace(call(draw), cpu_milli=2000, memory_bytes=1024 * MI) for _ in range(160)]
    assert not shifted(spare(known), [call(draw) for _ in range(40)], ANSWERS, RESOURCES)


def test_what_tells_nothing_of_the_demand_is_left_out() -> None:
    draw = random.Random(1)  # noqa: S311
    known = [call(draw) for _ in range(160)]
    for useless in (
        {"failed": True, "peak_memory_bytes": 200 * MI, "cpu_time_ns": 1},
        {
            "throttled_share": 0.5,
            "limit_cpu_milli": 400,
            "peak_cpu_milli": 400,
            "duration_ns": 1,
            "cpu_time_ns": 0,
        },
    ):
        newer = [replace(c, sample=replace(c.sample, **useless)) for c in (call(draw) for _ in range(40))]
        assert not shifted(spare(known), newer, ANSWERS, RESOURCES)


def test_where_nothing_is_predicted_nothing_has_changed() -> None:
    draw = random.Random(1)  # noqa: S311
    nothing = Answers(constant(0), constant(0), constant(0), (0, 0, 0))
    unanswered = [replace(call(draw), cpu_milli=0, memory_bytes=0) for _ in range(200)]
    assert not shifted(spare(unanswered[:100]), unanswered[100:], nothing, RESOURCES)
