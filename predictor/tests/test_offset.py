import random
import time

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from libra_predictor.offset import Offset, OffsetState

STEP = 100
LARGEST = 2000
ONE_IN = 100
MISS = [(350, 300)]  # peak and raw answer
CALM = [(250, 300)]


def offset(*calls: tuple[int, int], highest: int = 1000) -> Offset:
    after = Offset(STEP, LARGEST)
    for peak, raw in calls:
        after.observe(peak, raw, highest, ONE_IN)
    return after


def test_it_is_nothing_while_answers_suffice() -> None:
    assert offset().value(ONE_IN) == 0
    assert offset(*CALM * 200).value(ONE_IN) == 0


def test_a_miss_raises_it_by_the_shortfall_at_once() -> None:
    assert offset((350, 300)).value(ONE_IN) == 100
    assert offset(*CALM * 50, (651, 300)).value(ONE_IN) == 400


def test_a_second_miss_soon_raises_the_largest_answer_in_proportion() -> None:
    # 480 is 1.6 times 300, so the function's 1000 is on its way to 1600.
    assert offset(*CALM * 50, (350, 300), (480, 300)).value(ONE_IN) == 600
    late = offset(*CALM * 50, (350, 300), *CALM * 15, (480, 300))
    assert late.value(ONE_IN) == 200, "not when it comes late"


def test_a_miss_is_covered_until_it_is_one_in_a_hundred() -> None:
    assert offset(*CALM * 50, *MISS, *CALM * 100).value(ONE_IN) == 100
    assert offset(*CALM * 178, *MISS, *CALM * 19).value(ONE_IN) == 100
    assert offset(*CALM * 178, *MISS, *CALM * 21).value(ONE_IN) == 0, "the rise is gone, too"


def test_misses_that_come_again_keep_it_up() -> None:
    again = (MISS + CALM * 49) * 4
    assert offset(*again).value(ONE_IN) == 100
    assert offset(*again, *CALM * 200).value(ONE_IN) == 0, "until they stop"


def test_about_one_call_in_a_hundred_is_missed_in_the_long_run() -> None:
    peaks = [100 * (1 + i * 7919 % 40) for i in range(4000)]  # of a table that always answers 3000
    late = Offset(STEP, LARGEST)
    missed = 0
    for peak in peaks:
        missed += peak > 3000 + late.value(ONE_IN)
        late.observe(peak, 3000, 3000, ONE_IN)
    assert missed <= 0.015 * len(peaks)


@pytest.mark.parametrize(
    ("one_in", "count", "missed"),
    [
        *((100, 1, 0), (100, 12, 0), (100, 100, 0), (100, 198, 0), (100, 199, 1), (100, 200, 1)),
        *((50, 1, 0), (50, 98, 0), (50, 99, 1), (50, 160, 2), (50, 200, 3)),
    ],
)
def test_derived_it_covers_as_many_calls_as_that_the_next_is_missed_once_in_so_many(
    one_in: int, count: int, missed: int
) -> None:
    """It covers the ⌈(1 - 1 / one_in) (n + 1)⌉ of n calls that need least."""
    late = Offset(STEP, LARGEST)
    late.derive((300 + STEP * (i + 1), 300) for i in range(count))
    assert late.value(one_in) == STEP * (count - missed)
    late.derive(CALM * 100)
    assert late.value(one_in) == 0


def test_no_answer_is_raised_beyond_what_was_needed() -> None:
    one_thread = [(950, 1000), (600, 300)]
    after = offset(*one_thread * 30)
    assert after.value(ONE_IN) == 300
    assert after.most(1000) == 1000, "those of the other calls are"
    assert after.most(1300) == 1300, "an answer stays what it is"


def test_where_demands_grow_answers_may_be_what_none_needed_yet() -> None:
    after = offset(*CALM * 50, (350, 300), (480, 300))
    assert after.value(ONE_IN) == 600
    assert after.most(1000) == 1600
    after = offset(*CALM * 50, (1450, 1000), (1900, 1000), highest=1300)
    assert after.most(1300) == LARGEST, "up to the largest option"
    after.observe(2350, 1300, 1300, ONE_IN)
    assert after.most(1300) == 2400, "unless more is needed"


def test_an_update_takes_far_less_than_a_millisecond() -> None:
    late = offset(*(CALM + MISS) * 100)
    started = time.thread_time()
    for _ in range(100):
        late.observe(250, 300, 1000, ONE_IN)
    assert time.thread_time() - started < 0.1


calls = st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 100).map(lambda n: n * STEP)), max_size=150)


@given(calls)
def test_it_is_never_negative_and_a_multiple_of_the_step(seen: list[tuple[int, int]]) -> None:
    after = offset(*seen)
    assert after.value(ONE_IN) >= 0
    assert after.value(ONE_IN) % STEP == 0


@given(calls, st.integers(0, 10_000), st.integers(1, 100))
def test_after_a_miss_the_same_call_would_be_covered(
    seen: list[tuple[int, int]], peak: int, options: int
) -> None:
    after = offset(*seen)
    after.observe(peak, options * STEP, 10_000, ONE_IN)
    assert answer(after, options * STEP, 10_000) >= peak


def answer(after: Offset, raw: int, highest: int) -> int:
    return max(raw, min(raw + after.value(ONE_IN), after.most(highest)))


tables = st.lists(st.integers(1, 20).map(lambda n: n * STEP), min_size=1, max_size=20)


@hypothesis_settings(max_examples=30)
@given(tables, st.integers(2, 201), st.randoms(use_true_random=False))
def test_of_calls_in_any_order_the_next_is_missed_no_more_often_than_it_may(
    table: list[int], count: int, draw: random.Random
) -> None:
    """Counts what conformal prediction promises: each call in turn is the next after all others."""
    heavy = [(int(300 / (draw.random() + 0.01)), draw.choice(table)) for _ in range(count)]
    missed = 0
    for i, (peak, raw) in enumerate(heavy):
        after = Offset(STEP, LARGEST)
        after.derive([*heavy[:i], *heavy[i + 1 :]])
        missed += answer(after, raw, max(table)) < peak
    assert missed <= max(1, count // 100) + 1, "those of the largest shortfalls, and the one that needs most"


@given(calls, st.integers(1, 100).map(lambda n: n * STEP))
def test_it_ends_at_an_option_not_below_any_answer_nor_beyond_reason(
    seen: list[tuple[int, int]], highest: int
) -> None:
    after = offset(*seen, highest=highest)
    most = after.most(highest)
    assert most % STEP == 0
    assert max(highest, *(peak for peak, _ in seen), 0) <= most
    assert most <= max(highest, LARGEST, *(-(-peak // STEP) * STEP for peak, _ in seen), 0)


@given(calls, calls)
def test_restored_it_goes_on_the_same(before: list[tuple[int, int]], later: list[tuple[int, int]]) -> None:
    kept = offset(*before)
    restored = Offset(STEP, LARGEST)
    restored.restore(OffsetState.model_validate_json(kept.state().model_dump_json()))
    assert restored.state() == kept.state()
    for peak, raw in later:
        kept.observe(peak, raw, 1000, ONE_IN)
        restored.observe(peak, raw, 1000, ONE_IN)
        assert (restored.value(ONE_IN), restored.most(1000)) == (kept.value(ONE_IN), kept.most(1000))


def test_a_state_of_another_shape_is_refused() -> None:
    state = offset(*MISS).state().model_dump()
    with pytest.raises(ValueError, match="lengths"):
        OffsetState.model_validate(state | {"raws": []})
    with pytest.raises(ValueError, match="extra"):
        OffsetState.model_validate(state | {"more": 1})
