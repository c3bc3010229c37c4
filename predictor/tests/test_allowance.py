import pytest
from hypothesis import given
from hypothesis import strategies as st

from libra_predictor.allowance import Allowance


def test_a_reserve_may_be_spent_at_once_and_comes_back() -> None:
    allowance = Allowance(100.0, share=0.01, reserve=0.5)
    for _ in range(5):
        assert allowance.allowed_at() <= 100.0
        allowance.spend(100.0, 0.11)
    assert allowance.allowed_at() == pytest.approx(105.0)
    allowance.spend(105.0, 0.1)
    assert allowance.allowed_at() == pytest.approx(115.0)
    allowance.spend(10_000.0, 0.4)
    assert allowance.allowed_at() <= 10_000.0


def test_without_a_reserve_each_thing_waits_for_the_one_before_it() -> None:
    allowance = Allowance(100.0, share=0.005)
    assert allowance.allowed_at() <= 100.0
    allowance.spend(1000.0, 0.05)
    assert allowance.allowed_at() == pytest.approx(1010.0)


@given(
    share=st.floats(0.001, 0.5),
    reserve=st.floats(0, 2),
    wanted=st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 1)), min_size=1, max_size=50),
)
def test_no_more_than_the_share_is_spent_but_for_the_reserve_and_what_was_begun(
    share: float, reserve: float, wanted: list[tuple[float, float]]
) -> None:
    allowance, now = Allowance(0.0, share, reserve), 0.0
    spent = []
    for pause, cpu_seconds in wanted:
        now = max(now + pause, allowance.allowed_at())
        allowance.spend(now, cpu_seconds)
        spent.append(cpu_seconds)
        assert sum(spent[:-1]) <= reserve + share * now + 1e-6
