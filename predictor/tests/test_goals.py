import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.goals import DOES_NOT_HOLD, GOALS, HOLDS, NOT_KNOWN, Goal, judged, percentile_interval, rows

_MOST, _LEAST = Goal(0.01), Goal(0.9, at_least=True)


@pytest.mark.parametrize(
    ("goal", "interval", "verdict"),
    [
        (_MOST, (0.002, 0.009), HOLDS),
        (_MOST, (0.002, 0.01), HOLDS),
        (_MOST, (0.011, 0.02), DOES_NOT_HOLD),
        (_MOST, (0.005, 0.015), NOT_KNOWN),
        (_LEAST, (0.91, 0.95), HOLDS),
        (_LEAST, (0.8, 0.95), NOT_KNOWN),
        (_LEAST, (0.8, 0.89), DOES_NOT_HOLD),
        (_MOST, None, NOT_KNOWN),
    ],
)
def test_all_of_the_interval_decides(goal: Goal, interval: tuple[float, float] | None, verdict: str) -> None:
    assert goal.verdict(interval) == verdict


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.booleans())
def test_no_value_of_an_interval_contradicts_a_verdict(
    bound: float, one: float, other: float, where: float, at_least: bool
) -> None:
    low, high = sorted((one, other))
    goal = Goal(bound, at_least)
    verdict = goal.verdict((low, high))
    within = min(max(low + where * (high - low), low), high)
    if verdict != NOT_KNOWN:
        assert goal.reached(within) == (verdict == HOLDS)


def test_what_was_not_measured_is_not_left_out() -> None:
    verdicts = judged(
        {"under_cpu_related": 0.004, "table_mismatches": 0.0}, {"under_cpu_related": (0.002, 0.012)}
    )
    assert set(verdicts) == set(GOALS)
    assert verdicts.pop("under_cpu_related") == NOT_KNOWN, "the estimate alone would hold"
    assert verdicts.pop("table_mismatches") == HOLDS
    assert set(verdicts.values()) == {NOT_KNOWN}
    assert judged({"table_mismatches": 1.0}, {})["table_mismatches"] == DOES_NOT_HOLD


def test_every_goal_has_a_row() -> None:
    written = rows({"train_ms": 80.0}, {"train_ms": (70.0, 130.0)})
    assert [row[0] for row in written[1:]] == list(GOALS)
    assert ["train_ms", "<= 120", "80", "70 to 130", NOT_KNOWN] in written


def test_a_percentile_is_drawn_in_blocks() -> None:
    calm, slow = [1.0] * 180, [9.0] * 20
    assert percentile_interval(calm[:90] + slow + calm[90:], 0.95) == (1.0, 9.0)
    assert percentile_interval(calm, 0.95) == (1.0, 1.0)
    assert percentile_interval(slow, 0.95) is None, "one block"
    assert percentile_interval(calm, 0.99) is None, "two values are beyond it"
