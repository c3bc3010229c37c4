"""Which function is refitted next, and when."""

from collections.abc import Set
from typing import Final

from libra_predictor.allowance import Allowance
from libra_predictor.function import Haste

# Shares of a core for refits: of functions whose answers no longer fit, with a reserve to do some at once,
# and of those whose answers fit.
SOON_SHARE: Final = 0.005
SOON_RESERVE_SECONDS: Final = 0.15
WHENEVER_SHARE: Final = 0.002


class Refits:
    """The refits that are due. Times are in seconds of one clock."""

    def __init__(self, now: float) -> None:
        self._due: dict[str, tuple[Haste, float]] = {}  # with the time from which on each may begin
        self._not_before: dict[str, float] = {}
        self._allowances = {
            Haste.SOON: Allowance(now, SOON_SHARE, SOON_RESERVE_SECONDS),
            Haste.WHENEVER: Allowance(now, WHENEVER_SHARE),
        }

    def want(self, function: str, haste: Haste, now: float) -> bool:
        """Notes that a refit is due. Returns whether it was not known to be, or not as pressing."""
        known = self._due.get(function)
        if known is not None and known[0] <= haste:
            return False
        at = max(now, self._not_before.get(function, now)) if known is None else known[1]
        self._due[function] = haste, at
        return True

    def pressing(self, now: float) -> Set[str]:
        """The functions whose refit only waits for the refits before it."""
        return {function for function, (haste, at) in self._due.items() if haste is Haste.NOW and at <= now}

    def next(self, now: float) -> tuple[float, Haste, str] | None:
        """When the next refit may begin, its haste, and its function; None if none is due."""
        at = (
            (max(now, at, self._allowed_at(haste, now)), haste, at, function)
            for function, (haste, at) in self._due.items()
        )
        if (first := min(at, default=None)) is None:
            return None
        return first[0], first[1], first[3]

    def begin(self, function: str) -> None:
        del self._due[function]

    def spend(self, haste: Haste, now: float, cpu_seconds: float) -> None:
        """Takes in the CPU time of a refit that began with a haste."""
        if haste in self._allowances:
            self._allowances[haste].spend(now, cpu_seconds)

    def rest(self, function: str, until: float) -> None:
        """Lets no refit of a function begin before until."""
        self._not_before[function] = until
        if function in self._due:
            haste, at = self._due[function]
            self._due[function] = haste, max(at, until)

    def drop(self, function: str) -> None:
        self._due.pop(function, None)
        self._not_before.pop(function, None)

    def _allowed_at(self, haste: Haste, now: float) -> float:
        allowance = self._allowances.get(haste)
        return now if allowance is None else allowance.allowed_at()
