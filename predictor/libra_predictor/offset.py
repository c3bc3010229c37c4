"""The conformal offset: the amount added to answers so that they miss about one call in so many."""

import math
from collections import deque
from collections.abc import Iterable
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from libra_predictor.labels import option

_CALLS = 200  # to derive the offset from; it covers all of fewer than 2 * one_in - 1
_LATELY = 15  # calls within which a second miss counts as a drift
_MOST_RATIO = 4.0
_DECAY = 0.5 ** (1 / 20)  # a rise halves over twenty calls without a miss


def covering(shortfalls: Iterable[int], one_in: int) -> int:
    """The bound that the next call's shortfall exceeds once in one_in cases, or as seldom as these can tell.

    The next shortfall is equally likely to have any rank among n of them, so the ⌈(1 - 1/one_in) (n + 1)⌉th
    is its bound. There must be at least one.
    """
    ranked = sorted(shortfalls)
    count = len(ranked)
    return ranked[min(count, count + 1 - (count + 1) // one_in) - 1]


class OffsetState(BaseModel):
    """The complete state of an Offset, for a store."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    peaks: list[int]
    raws: list[int]
    ratios: list[float]
    rise: float

    @model_validator(mode="after")
    def _same_lengths(self) -> Self:
        if len(self.peaks) != len(self.raws):
            raise ValueError(f"peaks and raws have different lengths: {len(self.peaks)} and {len(self.raws)}")
        return self


class Offset:
    """The offset of one resource, in its unit, and a multiple of the step between its options.

    It is the larger of two: the conformal quantile of the last calls' shortfalls, which keeps the long-run
    rate of misses, and a rise, which follows each miss at once and decays.
    """

    def __init__(self, step: int, largest: int) -> None:
        """largest is the option that answers do not exceed, unless a call was seen to need more."""
        self._step, self._largest = step, largest
        self._calls: deque[tuple[int, int]] = deque(maxlen=_CALLS)  # peak and raw answer
        # Kept for the same calls, because the offset is asked for far more often than it changes.
        self._shortfalls: deque[int] = deque(maxlen=_CALLS)
        self._covering: tuple[int, int] | None = None  # one_in, and covering() of it; None until computed
        self._ratios: deque[float] = deque(maxlen=_LATELY)  # peak / raw answer of a missed call, else 0
        self._rise = 0.0  # options

    def observe(self, peak: int, raw: int, highest: int, one_in: int) -> None:
        """Takes in a call that used peak and that was answered raw, without the offset.

        highest is the highest raw answer of the function, and one in one_in calls may be missed.
        """
        needed = option(peak, self._step)
        if needed <= raw + self.value(one_in):
            self._ratios.append(0.0)
            self._rise *= _DECAY
        else:
            self._rise = max(self._rise, (needed - raw) / self._step)
            repeated = any(self._ratios)
            self._ratios.append(min(peak / raw, _MOST_RATIO))
            if repeated:
                # A demand mostly drifts in proportion: the small answers tell where the largest have to be.
                wanted = option(round(max(self._ratios) * highest), self._step)
                self._rise = max(self._rise, (wanted - highest) / self._step)
        self._calls.append((peak, raw))
        self._shortfalls.append(self._shortfall(peak, raw))
        self._covering = None

    def value(self, one_in: int) -> int:
        """The offset with which about one in one_in calls is missed."""
        rise = math.ceil(self._rise - 0.5) * self._step
        if not self._calls:
            return rise
        if self._covering is None or self._covering[0] != one_in:
            self._covering = (one_in, covering(self._shortfalls, one_in))
        return max(0, rise, self._covering[1])

    def most(self, highest: int) -> int:
        """The answer up to which the offset raises others: the most that one of the calls needed.

        The next call is as likely to need more than all of them as to have a larger shortfall than all, so
        the offset need not lift answers that are near the most already. It must where demands grow, as a rise
        shows. highest is the highest answer without the offset.
        """
        rise = math.ceil(self._rise - 0.5) * self._step
        seen = option(max(self._calls)[0], self._step) if self._calls else 0
        return max(highest, seen, min(highest + rise, self._largest))

    def derive(self, calls: Iterable[tuple[int, int]]) -> None:
        """Restarts from calls, oldest first: their peaks, and raw answers that did not learn from them."""
        self._ratios.clear()
        self._rise = 0.0
        self._calls = deque(calls, maxlen=_CALLS)
        self._measure()

    def state(self) -> OffsetState:
        return OffsetState(
            peaks=[peak for peak, _ in self._calls],
            raws=[raw for _, raw in self._calls],
            ratios=list(self._ratios),
            rise=self._rise,
        )

    def restore(self, state: OffsetState) -> None:
        self._calls = deque(zip(state.peaks, state.raws, strict=True), maxlen=_CALLS)
        self._ratios = deque(state.ratios, maxlen=_LATELY)
        self._rise = state.rise
        self._measure()

    def _measure(self) -> None:
        self._covering = None
        self._shortfalls.clear()
        self._shortfalls.extend(self._shortfall(peak, raw) for peak, raw in self._calls)

    def _shortfall(self, peak: int, raw: int) -> int:
        return option(peak, self._step) - raw
