"""Scores of answers: how often they were too low, and how much of the possible lending they allowed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

_Z = 1.959964  # of 95 %
_RESAMPLES = 500


@dataclass(frozen=True, slots=True)
class Outcome:
    """One call and one resource, in its unit."""

    allocation: int  # the owner's
    answer: int  # 0: no prediction, so that nothing is lent
    needed: int  # the option that would have held the call
    seconds: float = 1.0  # duration of the call
    function: str = ""
    seed: int = 0  # calls of one function and seed were answered after the same training


@dataclass(frozen=True, slots=True)
class Share:
    """A share with its 95 % interval."""

    value: float
    low: float
    high: float
    count: int  # calls

    def __str__(self) -> str:
        if not self.count:
            return "-"
        return f"{100 * self.value:5.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"


def wilson(successes: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion; 0 to 1 when there is nothing to go by."""
    if not count:
        return 0.0, 1.0
    share = successes / count
    scale = 1 + _Z**2 / count
    middle = share + _Z**2 / (2 * count)
    spread = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    return max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale)


def proportion(successes: int, count: int) -> Share:
    return Share(successes / count if count else 0.0, *wilson(successes, count), count)


def under_predicted(outcomes: Sequence[Outcome]) -> Share:
    """The share of calls that needed a larger option than was answered.

    Its interval is the wider of Wilson's and the one over trainings.
    """
    short = np.array([_short(o) for o in outcomes], dtype=np.float64)
    found = proportion(int(short.sum()), len(outcomes))
    return _widened(found, _over_trainings(outcomes, short, np.ones(len(outcomes))))


def harvested(outcomes: Sequence[Outcome], penalty: bool = False, by_time: bool = False) -> Share:
    """The share of an oracle's lending that is lent safely.

    Its interval is the wider of the bootstrap's over calls and the one over trainings.

    An oracle lends whatever the allocation has above the option needed. An under-predicted call counts as if
    nothing had been lent or, with a penalty, as minus what it lacked. By time, a call counts for as long as
    it took: in core seconds and byte seconds, which are what a borrower gets.
    """
    times = np.array([o.seconds if by_time else 1.0 for o in outcomes])
    lent = times * np.array([_lent(o, penalty) for o in outcomes], dtype=np.float64)
    could = times * np.array([o.allocation - o.needed for o in outcomes], dtype=np.float64)
    if not could.any():
        return Share(1.0, 1.0, 1.0, len(outcomes))
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(outcomes), (_RESAMPLES, len(outcomes)))
    shares = lent[drawn].sum(axis=1) / np.maximum(could[drawn].sum(axis=1), 1e-9)
    low, high = np.quantile(shares, (0.025, 0.975))
    found = Share(float(lent.sum() / could.sum()), float(low), float(high), len(outcomes))
    return _widened(found, _over_trainings(outcomes, lent, could))


def _widened(share: Share, interval: tuple[float, float] | None) -> Share:
    if interval is None:
        return share
    return replace(share, low=min(share.low, interval[0]), high=max(share.high, interval[1]))


def _over_trainings(
    outcomes: Sequence[Outcome], parts: NDArray[np.float64], wholes: NDArray[np.float64]
) -> tuple[float, float] | None:
    """The bootstrap's 95 % interval of the sum of parts over that of wholes, if functions were trained again.

    The calls after one training are all answered by one model, so they tell less than as many independent
    calls. The functions stay. Of each function's n trainings n - 1 are drawn, and count n / (n - 1) times: n
    of n would vary too little (Rao and Wu). None where no function was trained more than once.
    """
    sums: dict[str, dict[int, NDArray[np.float64]]] = {}
    for outcome, part, whole in zip(outcomes, parts, wholes, strict=True):
        of_function = sums.setdefault(outcome.function, {})
        of_function.setdefault(outcome.seed, np.zeros(2))[:] += part, whole
    if all(len(of_function) < 2 for of_function in sums.values()):
        return None
    rng = np.random.default_rng(0)
    drawn = np.zeros((_RESAMPLES, 2))
    for of_function in sums.values():
        trainings = np.array(list(of_function.values()))
        some = max(1, len(trainings) - 1)
        picked = rng.integers(0, len(trainings), (_RESAMPLES, some))
        drawn += trainings[picked].sum(axis=1) * len(trainings) / some
    low, high = np.quantile(drawn[:, 0] / np.maximum(drawn[:, 1], 1e-9), (0.025, 0.975))
    return float(low), float(high)


def ordered(predicted: NDArray[np.float64], actual: NDArray[np.float64]) -> float:
    """The share of pairs of calls that are predicted in the right order. Ties count half."""
    differ = np.sign(actual[:, None] - actual[None, :])
    said = np.sign(predicted[:, None] - predicted[None, :])
    pairs = np.abs(differ).sum()
    return float((1 + (differ * said).sum() / pairs) / 2) if pairs else 1.0


def _short(outcome: Outcome) -> bool:
    return 0 < outcome.answer < outcome.needed


def _lent(outcome: Outcome, penalty: bool) -> int:
    if not outcome.answer:
        return 0
    if _short(outcome):
        return outcome.answer - outcome.needed if penalty else 0
    return max(0, outcome.allocation - outcome.answer)


def least_constant(outcomes: Sequence[Outcome], missed: float) -> int:
    """The least option that, answered to all calls, would have missed no more than the share missed."""
    needed = sorted(o.needed for o in outcomes)
    return needed[max(0, len(needed) - 1 - int(missed * len(needed)))]
