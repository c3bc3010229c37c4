import pytest

from libra_predictor.function import Haste
from libra_predictor.refits import SOON_RESERVE_SECONDS, SOON_SHARE, WHENEVER_SHARE, Refits


@pytest.fixture
def refits() -> Refits:
    return Refits(100.0)


def begins(refits: Refits, now: float) -> float:
    following = refits.next(now)
    assert following is not None
    return following[0]


def test_what_is_due_longest_goes_first_among_the_most_pressing(refits: Refits) -> None:
    for name, haste, now in (("a", Haste.WHENEVER, 100.0), ("b", Haste.NOW, 102.0), ("c", Haste.NOW, 101.0)):
        assert refits.want(name, haste, now)
    order = []
    while (following := refits.next(103.0)) is not None:
        assert following[0] == 103.0
        order.append(following[2])
        refits.begin(following[2])
    assert order == ["c", "b", "a"]


def test_one_that_becomes_pressing_waits_no_more(refits: Refits) -> None:
    refits.spend(Haste.WHENEVER, 100.0, 0.1)
    assert refits.want("a", Haste.WHENEVER, 100.0)
    assert not refits.want("a", Haste.WHENEVER, 101.0)
    assert begins(refits, 101.0) == pytest.approx(100.0 + 0.1 / WHENEVER_SHARE)
    assert refits.want("a", Haste.SOON, 102.0)
    assert refits.next(102.0) == (102.0, Haste.SOON, "a")
    assert not refits.want("a", Haste.WHENEVER, 103.0)
    assert refits.want("a", Haste.NOW, 103.0)


def test_pressing_ones_may_use_a_reserve_and_young_functions_more(refits: Refits) -> None:
    refits.spend(Haste.SOON, 100.0, SOON_RESERVE_SECONDS + 0.1)
    refits.want("drifted", Haste.SOON, 100.0)
    assert begins(refits, 100.0) == pytest.approx(100.0 + 0.1 / SOON_SHARE)
    refits.spend(Haste.NOW, 100.0, 10.0)
    refits.want("young", Haste.NOW, 101.0)
    assert refits.next(101.0) == (101.0, Haste.NOW, "young")


def test_a_function_rests_between_two(refits: Refits) -> None:
    refits.rest("a", 105.0)
    refits.want("a", Haste.NOW, 101.0)
    assert refits.next(101.0) == (105.0, Haste.NOW, "a")
    refits.drop("a")
    assert refits.next(101.0) is None
    refits.want("a", Haste.NOW, 101.0)
    assert refits.next(101.0) == (101.0, Haste.NOW, "a"), "it is another of that name"


def test_one_that_is_due_already_rests_too(refits: Refits) -> None:
    refits.want("a", Haste.NOW, 101.0)
    refits.rest("a", 130.0)
    assert refits.next(101.0) == (130.0, Haste.NOW, "a")
    refits.rest("a", 120.0)
    assert refits.next(101.0) == (130.0, Haste.NOW, "a")


def test_pressing_are_those_that_need_not_wait(refits: Refits) -> None:
    refits.rest("rests", 105.0)
    for name, haste in (("a", Haste.NOW), ("b", Haste.SOON), ("c", Haste.WHENEVER), ("rests", Haste.NOW)):
        refits.want(name, haste, 100.0)
    assert refits.pressing(101.0) == {"a"}
    refits.begin("a")
    assert refits.pressing(105.0) == {"rests"}
