"""Bounds the CPU time of refits: functions on the node lack what the predictor uses."""


class Allowance:
    """A share of a core over time, with a reserve for bursts.

    Work that has begun is finished, so it may leave a debt. Nothing more is allowed until that is paid. Times
    are in seconds of one clock.
    """

    def __init__(self, now: float, share: float, reserve: float = 0.0) -> None:
        self._share = share
        self._reserve = self._left = reserve
        self._at = now

    def allowed_at(self) -> float:
        """The time from which on more work is allowed."""
        return self._at - self._left / self._share

    def spend(self, now: float, cpu_seconds: float) -> None:
        """Takes in the CPU time of work that was allowed and has ended now."""
        self._left = min(self._reserve, self._left + self._share * (now - self._at)) - cpu_seconds
        self._at = now
