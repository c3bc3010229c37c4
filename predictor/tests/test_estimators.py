from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libra_predictor.estimators import (
    MEDIAN,
    ClassModel,
    QuantileModel,
    class_model,
    class_models,
    cpu_time_median,
    cpu_time_model,
    cpu_timed,
    duration_histogram,
    duration_moving_window,
    histogram,
    microseconds,
    milliseconds,
    moving_window,
    ranked,
    timed,
)
from libra_predictor.labels import Label
from libra_predictor.observations import MAX_SIZE, UNKNOWN_SIZE, Sample
from libra_predictor.tables import StepTable


def labelled(*options: int, size: int = 1000) -> list[Label]:
    return [Label(use=i, size=size, option=option, censored=False) for i, option in enumerate(options)]


def lasting(*milliseconds: int, size: int = 1000, throttled_share: float = 0.0) -> list[Sample]:
    return [Sample(size, ms * 1_000_000, 100, 1, 500, 1 << 30, throttled_share) for ms in milliseconds]


@pytest.mark.parametrize(
    ("count", "share", "expected"),
    [(1, 0.99, 1), (99, 0.99, 99), (100, 0.99, 99), (200, 0.99, 198), (10, 0.05, 1), (100, 0.05, 5)],
)
def test_the_rank_is_rounded_up(count: int, share: float, expected: int) -> None:
    assert ranked(list(range(count, 0, -1)), share) == expected


def test_a_histogram_below_a_hundred_samples_answers_the_largest() -> None:
    estimate = histogram(labelled(*[100] * 98, 900))
    assert (estimate.at(0), estimate.at(UNKNOWN_SIZE)) == (900, 900)
    assert histogram(labelled(*[100] * 99, 900)).at(0) == 100


def test_inputs_of_unknown_size_get_what_such_inputs_needed() -> None:
    labels = [*labelled(*[100] * 199), *labelled(900, size=UNKNOWN_SIZE)]
    assert histogram(labels).at(UNKNOWN_SIZE) == 900
    assert histogram(labels).at(1000) == 100


def test_a_moving_window_has_the_most_and_the_least_duration() -> None:
    estimate = moving_window(labelled(100, 200, 300, 100, 100))
    assert (estimate.at(0), estimate.at(UNKNOWN_SIZE)) == (300, 300)
    assert duration_moving_window(lasting(90, 80, 70, 60, 50)).at(0) == 50


def test_a_duration_histogram_is_low() -> None:
    assert duration_histogram(lasting(*range(100, 0, -1))).at(0) == 5


def test_durations_are_learned_from_unthrottled_runs_and_of_larger_inputs() -> None:
    fast = lasting(10, size=100) + lasting(10, size=1000)
    small, large = (
        lasting(90, size=1000, throttled_share=0.4)[0],
        lasting(90, size=1001, throttled_share=0.4)[0],
    )
    assert timed([*fast, small, large]) == [*fast, large]


def test_no_class_model_without_a_known_size() -> None:
    labels = labelled(100, 200, size=UNKNOWN_SIZE)
    assert class_models(labels, class_model(labels)) == []


def test_a_higher_quantile_never_answers_less() -> None:
    rng = np.random.default_rng(5)
    sizes = np.exp(rng.uniform(0, 20, 100)).astype(np.int64)
    labels = [
        Label(use=i, size=int(s), option=int(rng.integers(1, 9)) * 100, censored=False)
        for i, s in enumerate(sizes)
    ]
    lower, upper = class_models(labels, class_model(labels))
    assert all(lower.at(size) <= upper.at(size) for size in range(0, 1 << 20, 999))


sizes = st.integers(0, MAX_SIZE)
seen = st.lists(st.tuples(sizes, st.integers(1, 6)), min_size=1, max_size=40)


@settings(max_examples=40)
@given(seen, st.lists(sizes, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_table_is_its_model(seen: list[tuple[int, int]], asked: list[int], quantile: float) -> None:
    classes = ClassModel(
        [Label(use=i, size=s, option=100 * c, censored=False) for i, (s, c) in enumerate(seen)]
    )
    amounts = np.array([10.0 * c for _, c in seen])
    times = QuantileModel([s for s, _ in seen], amounts, quantile)
    for table, evaluate in (
        (classes.exact_table(quantile), lambda every: classes.evaluate(every, quantile)),
        (times.table(), times.evaluate),
    ):
        every = tried(table, [*asked, *(s for s, _ in seen)])
        assert [table.at(int(s)) for s in every] == evaluate(every).tolist()


@settings(max_examples=40)
@given(seen, st.sampled_from([0.25, MEDIAN]))
def test_a_quantile_is_never_beyond_what_was_seen(seen: list[tuple[int, int]], quantile: float) -> None:
    amounts = [10**c for _, c in seen]
    table = QuantileModel([s for s, _ in seen], np.array(amounts, dtype=np.float64), quantile).table()
    assert min(amounts) <= min(table.values)
    assert max(table.values) <= max(amounts)


def tried(table: StepTable, asked: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Sizes where a table could differ: around its thresholds and all others, and at the ends of float32."""
    edges = [1 << n for n in range(23, 51)]
    near = [s + d for s in (*table.thresholds, *asked, *edges) for d in (-1, 0, 1)]
    return np.array([s for s in (*near, 0, MAX_SIZE) if 0 <= s <= MAX_SIZE], dtype=np.int64)


@settings(max_examples=20)
@given(seen)
def test_the_same_samples_give_the_same_table(seen: list[tuple[int, int]]) -> None:
    labels = [Label(use=i, size=s, option=100 * c, censored=False) for i, (s, c) in enumerate(seen)]
    assert ClassModel(labels).table(0.95) == ClassModel(labels).table(0.95)


def test_a_duration_is_at_least_a_millisecond() -> None:
    assert milliseconds(lasting(0, 5)).tolist() == [1.0, 5.0]


def using(*us: int, size: int = 1000, **changes: Any) -> list[Sample]:
    """Calls that used so many microseconds of CPU time."""
    (base,) = lasting(100, size=size)
    return [replace(base, cpu_time_ns=u * 1000, **changes) for u in us]


def test_a_cpu_time_is_of_every_call_that_was_whole_throttled_or_not() -> None:
    whole = [*using(500), *using(700, throttled_share=0.9)]
    unknown, killed = using(0), using(90, failed=True)
    assert cpu_timed([*whole, *unknown, *killed]) == whole
    assert microseconds(using(500, 1)).tolist() == [500.0, 1.0]
    assert microseconds([replace(using(1)[0], cpu_time_ns=30)]).tolist() == [1.0], "0 would be no prediction"


def test_a_cpu_time_is_a_median() -> None:
    estimate = cpu_time_median(using(1, 2, 30, 40, 5000))
    assert (estimate.at(0), estimate.at(1 << 40), estimate.at(UNKNOWN_SIZE)) == (30, 30, 30)
    model = cpu_time_model([*using(*[400] * 20, size=10), *using(*[90_000] * 10, size=10**6)])
    assert model is not None
    assert (model.at(10), model.at(UNKNOWN_SIZE)) == (400, 400)
    assert model.at(10**6) == pytest.approx(90_000, rel=0.01)
    assert cpu_time_model(using(400, size=UNKNOWN_SIZE)) is None
