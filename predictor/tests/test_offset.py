import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_predictor.offset import Offset, OffsetState

STEP = 100
MISS = [(350, 300)]  # peak and raw answer
CALM = [(250, 300)]


def offset(*calls: tuple[int, int], highest: int = 1000) -> Offset:
    after = Offset(STEP)
    for peak, raw in calls:
        after.observe(peak, raw, highest)
    return after


def test_it_is_nothing_while_answers_suffice() -> None:
    assert offset().value() == 0
    assert offset(*CALM * 200).value() == 0


def test_a_miss_raises_it_by_the_shortfall_at_once() -> None:
    assert offset((350, 300)).value() == 100
    assert offset(*CALM * 50, (651, 300)).value() == 400


def test_a_second_miss_soon_raises_the_largest_answer_in_proportion() -> None:
    # 480 is 1.6 times 300, so the function's 1000 is on its way to 1600.
    assert offset(*CALM * 50, (350, 300), (480, 300)).value() == 600
    assert offset(*CALM * 50, (350, 300), *CALM * 15, (480, 300)).value() == 200, "not when it comes late"


def test_a_miss_is_covered_until_it_is_one_in_a_hundred() -> None:
    assert offset(*CALM * 50, *MISS, *CALM * 100).value() == 100
    assert offset(*CALM * 178, *MISS, *CALM * 19).value() == 100
    assert offset(*CALM * 178, *MISS, *CALM * 21).value() == 0, "the rise is gone, too"


def test_misses_that_come_again_keep_it_up() -> None:
    again = (MISS + CALM * 49) * 4
    assert offset(*again).value() == 100
    assert offset(*again, *CALM * 200).value() == 0, "until they stop"


def test_about_one_call_in_a_hundred_is_missed_in_the_long_run() -> None:
    peaks = [100 * (1 + i * 7919 % 40) for i in range(4000)]  # of a table that always answers 3000
    late = Offset(STEP)
    missed = 0
    for peak in peaks:
        missed += peak > 3000 + late.value()
        late.observe(peak, 3000, 3000)
    assert missed <= 0.015 * len(peaks)


def test_a_floor_that_covers_the_calls_needs_no_offset() -> None:
    after = offset(*CALM * 50, *MISS)
    assert after.value() == 100
    after.raised_floor(100)
    assert after.value(floor=400) == 0


@pytest.mark.parametrize(("count", "missed"), [(1, 0), (12, 0), (100, 0), (198, 0), (199, 1), (200, 1)])
def test_derived_it_covers_as_many_calls_as_that_the_next_is_missed_once_in_a_hundred(
    count: int, missed: int
) -> None:
    """Of n calls, the ⌈0.99 (n + 1)⌉ that need least."""
    late = Offset(STEP)
    late.derive((300 + STEP * (i + 1), 300) for i in range(count))
    assert late.value() == STEP * (count - missed)
    late.derive(CALM * 100)
    assert late.value() == 0


def test_an_update_takes_far_less_than_a_millisecond() -> None:
    late = offset(*(CALM + MISS) * 100)
    started = time.perf_counter()
    for _ in range(100):
        late.observe(250, 300, 1000)
    assert time.perf_counter() - started < 0.1


calls = st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 100).map(lambda n: n * STEP)), max_size=150)


@given(calls, st.integers(0, 5000))
def test_it_is_never_negative_and_a_multiple_of_the_step(seen: list[tuple[int, int]], floor: int) -> None:
    after = offset(*seen)
    assert after.value(floor) >= 0
    assert after.value(floor) % STEP == 0 or floor


@given(calls, st.integers(0, 10_000), st.integers(1, 100))
def test_after_a_miss_the_same_call_would_be_covered(
    seen: list[tuple[int, int]], peak: int, options: int
) -> None:
    after = offset(*seen)
    after.observe(peak, options * STEP, 10_000)
    assert options * STEP + after.value() >= peak


@given(calls, calls)
def test_restored_it_goes_on_the_same(before: list[tuple[int, int]], later: list[tuple[int, int]]) -> None:
    kept = offset(*before)
    restored = Offset(STEP)
    restored.restore(OffsetState.model_validate_json(kept.state().model_dump_json()))
    assert restored.state() == kept.state()
    for peak, raw in later:
        kept.observe(peak, raw, 1000)
        restored.observe(peak, raw, 1000)
        assert restored.value() == kept.value()


def test_a_state_of_another_shape_is_refused() -> None:
    state = offset(*MISS).state().model_dump()
    with pytest.raises(ValueError, match="lengths"):
        OffsetState.model_validate(state | {"raws": []})
    with pytest.raises(ValueError, match="extra"):
        OffsetState.model_validate(state | {"more": 1})
