import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_predictor.observations import MAX_SIZE, UNKNOWN_SIZE, Sample
from libra_predictor.tables import StepTable, tabulated
from libra_predictor.trainer import (
    CPU_STEP_MILLI,
    MEMORY_STEP_BYTES,
    ClassModel,
    DurationModel,
    Label,
    cpu_labels,
    fit,
    memory_labels,
    option,
)

LARGEST_CPU_MILLI = 2000
LARGEST_MEMORY_BYTES = 1 << 30
MI = 1 << 20

CALM = Sample(
    size=1000,
    duration_ns=100_000_000,
    peak_cpu_milli=250,
    peak_memory_bytes=50 * MI,
    limit_cpu_milli=500,
    limit_memory_bytes=256 * MI,
    throttled_share=0.0,
)
THROTTLED = dataclasses.replace(CALM, peak_cpu_milli=490, throttled_share=0.4)


def sample(base: Sample = CALM, **changes: Any) -> Sample:
    return dataclasses.replace(base, **changes)


@pytest.mark.parametrize(
    ("volume", "expected"), [(0, 100), (1, 100), (100, 100), (101, 200), (1950, 2000), (3001, 3100)]
)
def test_option(volume: int, expected: int) -> None:
    assert option(volume, CPU_STEP_MILLI) == expected


@pytest.mark.parametrize(
    ("observed", "wanted", "censored"),
    [
        pytest.param(CALM, 300, False, id="seen"),
        pytest.param(sample(peak_cpu_milli=490), 500, False, id="near its limit and never throttled"),
        pytest.param(sample(throttled_share=0.4), 300, False, id="throttled in bursts, far below its limit"),
        pytest.param(THROTTLED, 1000, True, id="throttled at its limit: twice the limit"),
        pytest.param(sample(THROTTLED, limit_cpu_milli=550), 1100, True, id="the target is an option too"),
        pytest.param(
            sample(THROTTLED, limit_cpu_milli=1200, peak_cpu_milli=1200), 2000, True, id="at most the largest"
        ),
        pytest.param(
            sample(THROTTLED, limit_cpu_milli=3000, peak_cpu_milli=3000),
            3000,
            True,
            id="not less than what it had",
        ),
        pytest.param(sample(THROTTLED, limit_cpu_milli=0), 500, False, id="without a limit"),
    ],
)
def test_cpu_label(observed: Sample, wanted: int, censored: bool) -> None:
    assert cpu_labels([observed], LARGEST_CPU_MILLI) == [Label(1000, wanted, censored)]


@pytest.mark.parametrize(
    ("peak", "limit", "wanted", "censored"),
    [
        pytest.param(50 * MI, 256 * MI, 64 * MI, False, id="seen"),
        pytest.param(242 * MI, 256 * MI, 256 * MI, False, id="just below near its limit"),
        pytest.param(244 * MI, 256 * MI, 512 * MI, True, id="near its limit"),
        pytest.param(1000 * MI, 1000 * MI, 1024 * MI, True, id="at most the largest"),
        pytest.param(50 * MI, 0, 64 * MI, False, id="without a limit"),
    ],
)
def test_memory_label(peak: int, limit: int, wanted: int, censored: bool) -> None:
    observed = sample(peak_memory_bytes=peak, limit_memory_bytes=limit)
    assert memory_labels([observed], LARGEST_MEMORY_BYTES) == [Label(1000, wanted, censored)]


@pytest.mark.parametrize(
    ("later", "superseded"),
    [
        pytest.param(sample(), True, id="same size"),
        pytest.param(sample(size=2000), True, id="larger"),
        pytest.param(sample(size=999), False, id="smaller"),
        pytest.param(THROTTLED, False, id="censored as well"),
        pytest.param(sample(size=UNKNOWN_SIZE), False, id="of unknown size"),
    ],
)
def test_a_censored_observation_is_superseded_by_a_later_uncensored_one(
    later: Sample, superseded: bool
) -> None:
    labels = cpu_labels([THROTTLED, later], LARGEST_CPU_MILLI)
    assert len(labels) == (1 if superseded else 2)
    assert len(cpu_labels([later, THROTTLED], LARGEST_CPU_MILLI)) == 2, "an earlier one supersedes nothing"


def test_of_unknown_size_only_the_unknown_supersede() -> None:
    throttled = sample(THROTTLED, size=UNKNOWN_SIZE)
    assert len(cpu_labels([throttled, sample()], LARGEST_CPU_MILLI)) == 2
    assert len(cpu_labels([throttled, sample(size=UNKNOWN_SIZE)], LARGEST_CPU_MILLI)) == 1


def fitted(samples: list[Sample]) -> dict[str, StepTable | tuple[int, int, int]]:
    answers = fit(samples, LARGEST_CPU_MILLI, LARGEST_MEMORY_BYTES).answers
    return {field.name: getattr(answers, field.name) for field in dataclasses.fields(answers)}


def test_one_class_is_a_constant() -> None:
    assert fitted([sample(size=s) for s in (10, 1000, 100_000)]) == {
        "cpu_milli": StepTable((), (300,)),
        "memory_bytes": StepTable((), (64 * MI,)),
        "duration_ms": StepTable((), (100,)),
        "unknown": (300, 64 * MI, 100),
    }


def test_memory_is_never_below_what_was_ever_seen() -> None:
    sizes = [1000 * 2**i for i in range(10)] * 4
    samples = [sample(size=s, peak_memory_bytes=s * 400) for s in sizes]
    highest = option(max(sizes) * 400, MEMORY_STEP_BYTES)
    assert fitted(samples)["memory_bytes"] == StepTable((), (highest,))
    unsized = sample(size=UNKNOWN_SIZE, peak_memory_bytes=200 * MI)
    assert fitted([*samples, unsized])["memory_bytes"] == StepTable((), (max(highest, 256 * MI),))


def test_durations_are_learned_from_unthrottled_runs() -> None:
    slow = [sample(THROTTLED, size=s, duration_ns=900_000_000) for s in (10, 1000, 100_000)]
    assert fitted(slow)["duration_ms"] == StepTable((), (900,)), "there are no others"
    fast = [sample(size=s) for s in (10, 1000, 100_000)]
    assert fitted(slow + fast)["duration_ms"] == StepTable((), (100,))


def test_a_throttled_duration_counts_for_inputs_larger_than_any_unthrottled() -> None:
    fast = [sample(size=s) for s in (10, 100, 1000) for _ in range(8)]
    slow = [sample(THROTTLED, size=s, duration_ns=900_000_000) for s in (100, 100_000) for _ in range(8)]
    durations = fit(fast + slow, LARGEST_CPU_MILLI, LARGEST_MEMORY_BYTES).answers.duration_ms
    assert durations.at(100) == 100
    assert durations.at(100_000) == pytest.approx(900, rel=0.01)


def test_without_a_known_size_every_answer_is_that_of_the_unknown() -> None:
    samples = [sample(size=UNKNOWN_SIZE, peak_cpu_milli=100 * i) for i in range(1, 13)]
    answers = fitted(samples)
    assert answers["unknown"] == (1200, 64 * MI, 100)
    assert answers["cpu_milli"] == StepTable((), (1200,))
    assert answers["duration_ms"] == StepTable((), (100,))


def test_wrong_answers_err_upward() -> None:
    rng = np.random.default_rng(7)

    def peaks(sizes: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[int]:
        return [int(100 + 1400 * np.log(s / 1e3) / np.log(1e5) * rng.uniform(0.98, 1.02)) for s in sizes]

    seen, unseen = (np.exp(rng.uniform(np.log(1e3), np.log(1e8), n)).astype(np.int64) for n in (200, 2000))
    table = fit(
        [sample(size=int(s), peak_cpu_milli=p) for s, p in zip(seen, peaks(seen), strict=True)],
        LARGEST_CPU_MILLI,
        LARGEST_MEMORY_BYTES,
    ).answers.cpu_milli
    short = [table.at(int(s)) < p for s, p in zip(unseen, peaks(unseen), strict=True)]
    assert np.mean(short) < 0.05
    spared = sum(2000 - table.at(int(s)) for s in unseen) / sum(2000 - option(p, 100) for p in peaks(unseen))
    assert spared > 0.85, "and yet most of what an oracle would spare is spared"


sizes = st.integers(0, MAX_SIZE)


@settings(max_examples=40, deadline=None)
@given(
    seen=st.lists(st.tuples(sizes, st.integers(1, 6)), min_size=1, max_size=40),
    asked=st.lists(sizes, max_size=200),
)
def test_a_table_is_its_model(seen: list[tuple[int, int]], asked: list[int]) -> None:
    smallest, largest = min(s for s, _ in seen), max(s for s, _ in seen)
    classes = ClassModel([Label(s, 100 * c, False) for s, c in seen])
    durations = DurationModel([s for s, _ in seen], [c * 10_000_000 for _, c in seen])
    for model in (classes, durations):
        table = tabulated(model.evaluate, model.splits(), smallest, largest)
        near = [t + d for t in (*table.thresholds, *(s for s, _ in seen)) for d in (-1, 0, 1)]
        every = np.array([s for s in (*asked, *near, 0, MAX_SIZE) if s >= 0], dtype=np.int64)
        assert [table.at(int(s)) for s in every] == model.evaluate(every).tolist()


@settings(max_examples=20, deadline=None)
@given(seen=st.lists(st.tuples(sizes, st.integers(1, 6)), min_size=1, max_size=40))
def test_the_same_samples_give_the_same_answers(seen: list[tuple[int, int]]) -> None:
    samples = [sample(size=s, peak_cpu_milli=100 * c, duration_ns=c * 10_000_000) for s, c in seen]
    assert fitted(samples) == fitted(samples)
