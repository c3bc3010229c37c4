import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_predictor import labels
from libra_predictor.labels import Label, Resource, Use, option
from libra_predictor.observations import UNKNOWN_SIZE, Sample

MI = 1 << 20
LARGEST_CPU_MILLI = 2000
LARGEST_MEMORY_BYTES = 1 << 30
CPU_STEP_MILLI = 100
MEMORY_STEP_BYTES = 64 * MI

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


def cpu_labels(samples: list[Sample]) -> list[Label]:
    return labels.labels([labels.cpu(s) for s in samples], CPU_STEP_MILLI, LARGEST_CPU_MILLI)


def memory_labels(samples: list[Sample]) -> list[Label]:
    return labels.labels([labels.memory(s) for s in samples], MEMORY_STEP_BYTES, LARGEST_MEMORY_BYTES)


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
    assert cpu_labels([observed]) == [Label(use=0, size=1000, option=wanted, censored=censored)]


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
    assert memory_labels([observed]) == [Label(use=0, size=1000, option=wanted, censored=censored)]


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        pytest.param(sample(peak_cpu_milli=700), [(1, 700, False)], id="same size: dropped"),
        pytest.param(sample(size=2000, peak_cpu_milli=700), [(1, 700, False)], id="larger: dropped"),
        pytest.param(
            sample(peak_cpu_milli=250),
            [(0, 500, False), (1, 300, False)],
            id="same size, and needed less: what it did use stays",
        ),
        pytest.param(
            sample(size=999, peak_cpu_milli=700),
            [(0, 1000, True), (1, 700, False)],
            id="smaller: still tried",
        ),
        pytest.param(THROTTLED, [(0, 1000, True), (1, 1000, True)], id="censored as well"),
        pytest.param(
            sample(size=UNKNOWN_SIZE, peak_cpu_milli=700),
            [(0, 1000, True), (1, 700, False)],
            id="of unknown size",
        ),
    ],
)
def test_a_censored_observation_is_superseded_by_a_later_uncensored_one(
    later: Sample, expected: list[tuple[int, int, bool]]
) -> None:
    assert [(label.use, label.option, label.censored) for label in cpu_labels([THROTTLED, later])] == expected
    assert cpu_labels([later, THROTTLED])[-1].censored, "an earlier one supersedes nothing"


def test_of_unknown_size_only_the_unknown_supersede() -> None:
    throttled = sample(THROTTLED, size=UNKNOWN_SIZE)
    assert cpu_labels([throttled, sample(peak_cpu_milli=700)])[0].censored
    assert not cpu_labels([throttled, sample(size=UNKNOWN_SIZE, peak_cpu_milli=700)])[0].censored


def test_an_allocation_beyond_the_setting_is_not_capped_below_itself() -> None:
    cpu = Resource(labels.cpu, CPU_STEP_MILLI, LARGEST_CPU_MILLI)
    assert cpu.largest_seen(labels.cpu(CALM)) == 2000
    assert cpu.largest_seen(labels.cpu(sample(limit_cpu_milli=3050))) == 3100
    assert cpu.largest_seen(labels.cpu(sample(peak_cpu_milli=2001, limit_cpu_milli=0))) == 2100


def test_of_what_failed_no_cpu_is_learned_unless_there_is_nothing_else() -> None:
    failed = sample(THROTTLED, failed=True, peak_memory_bytes=250 * MI)
    assert [label.use for label in cpu_labels([failed, CALM, failed])] == [1]
    assert cpu_labels([failed]) == [Label(use=0, size=1000, option=500, censored=False)]
    assert memory_labels([failed]) == [Label(use=0, size=1000, option=512 * MI, censored=True)]
    assert labels.throttled(sample(failed=True)), "its duration is not the function's own"


uses = st.builds(
    Use,
    size=st.integers(UNKNOWN_SIZE, 20),
    peak=st.integers(0, 1000),
    limit=st.integers(0, 1000),
    censored=st.booleans(),
)


@given(st.lists(uses, max_size=30), st.integers(1, 200))
def test_a_label_is_never_below_its_peak_nor_above_the_largest_option(seen: list[Use], step: int) -> None:
    largest = option(1000, step)
    found = labels.labels(seen, step, largest)
    for label in found:
        assert seen[label.use].peak <= label.option <= largest
        assert label.option % step == 0
        assert label.size == seen[label.use].size
    kept = {label.use for label in found}
    assert kept >= {i for i, use in enumerate(seen) if not use.censored}, "what was seen is always learned"
    assert [label.use for label in found] == sorted(kept)
