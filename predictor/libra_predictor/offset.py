"""The conformal offset: what is added to answers so that about one call in a hundred is missed."""

import math
from collections import deque
from collections.abc import Iterable
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator

from libra_predictor.labels import option

_CALLS = 200  # that the offset is derived from; below 199 of them it covers all
_ONE_IN = 100  # calls may be missed
_LATELY = 15  # calls within which a second miss is taken for a drift
_MOST_RATIO = 4.0
_DECAY = 0.5 ** (1 / 20)  # a rise halves in twenty calls that suffice


def covering(shortfalls: Iterable[int]) -> int:
    """What the next call's shortfall is within in 99 of 100 cases, or in as many as these can tell of.

    It is as likely to be of any rank among n of them, and so within the ⌈0.99 (n + 1)⌉th; there is at least
    one.
    """
    ranked = sorted(shortfalls)
    count = len(ranked)
    return ranked[min(count, count + 1 - (count + 1) // _ONE_IN) - 1]


class OffsetState(BaseModel):
    """All of an Offset, for a store."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    peaks: list[int]
    raws: list[int]
    ratios: list[float]
    rise: float

    @model_validator(mode="after")
    def _same_lengths(self) -> Self:
        if len(self.peaks) != len(self.raws):
            raise ValueError(f"peaks and raws are of lengths {len(self.peaks)} and {len(self.raws)}, not one")
        return self


class Offset:
    """The offset of one resource, in its unit and a multiple of its options.

    It is the larger of two: the conformal quantile of the last calls' shortfalls, which keeps the rate of
    misses in the long run, and a rise that follows each miss at once and decays.
    """

    def __init__(self, step: int, largest: int) -> None:
        """largest is the option beyond which nothing is answered unless it was seen to be needed."""
        self._step, self._largest = step, largest
        self._calls: deque[tuple[int, int]] = deque(maxlen=_CALLS)  # peak and raw answer
        # Of these calls: it is asked for far more often than it changes.
        self._shortfalls: deque[int] = deque(maxlen=_CALLS)
        self._covering: int | None = (
            None  # the offset that enough of them ask for; None when that is not known
        )
        self._ratios: deque[float] = deque(maxlen=_LATELY)  # of peak to raw answer if it was missed, or 0
        self._rise = 0.0  # options

    def observe(self, peak: int, raw: int, highest: int) -> None:
        """Takes in a call that used peak and whose answer without the offset was raw.

        highest is the highest raw answer of the function.
        """
        needed = option(peak, self._step)
        if needed <= raw + self.value():
            self._ratios.append(0.0)
            self._rise *= _DECAY
        else:
            self._rise = max(self._rise, (needed - raw) / self._step)
            repeated = any(self._ratios)
            self._ratios.append(min(peak / raw, _MOST_RATIO))
            if repeated:
                # A demand that drifts mostly does so in proportion: where the largest answers have to be is
                # told by the small ones.
                wanted = option(round(max(self._ratios) * highest), self._step)
                self._rise = max(self._rise, (wanted - highest) / self._step)
        self._calls.append((peak, raw))
        self._shortfalls.append(self._shortfall(peak, raw))
        self._covering = None

    def value(self) -> int:
        rise = math.ceil(self._rise - 0.5) * self._step
        if not self._calls:
            return rise
        if self._covering is None:
            self._covering = covering(self._shortfalls)
        return max(0, rise, self._covering)

    def most(self, highest: int) -> int:
        """The answer up to which the offset raises others: what one of the calls needed.

        The next call is as likely to need more than all of them as to have more of a shortfall, so no offset
        has to lift answers that are near the most already. Where demands grow, which a rise tells, it has.
        highest is the highest answer without the offset.
        """
        rise = math.ceil(self._rise - 0.5) * self._step
        seen = option(max(self._calls)[0], self._step) if self._calls else 0
        return max(highest, seen, min(highest + rise, self._largest))

    def derive(self, calls: Iterable[tuple[int, int]]) -> None:
        """Starts anew from calls, oldest first: their peaks, and raw answers that had not learned them."""
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
