"""How much CPU time refits may take: what the predictor uses, functions on its node lack."""


class Allowance:
    """A share of a core over time, with a reserve for when much is wanted at once.

    What is begun is ended, so it may leave a debt; nothing more is allowed until that is paid. Times are in
    seconds of one clock.
    """

    def __init__(self, now: float, share: float, reserve: float = 0.0) -> None:
        self._share = share
        self._reserve = self._left = reserve
        self._at = now

    def allowed_at(self) -> float:
        """From when on something may be done."""
        return self._at - self._left / self._share

    def spend(self, now: float, cpu_seconds: float) -> None:
        """Takes in what was done since it was allowed."""
        self._left = min(self._reserve, self._left + self._share * (now - self._at)) - cpu_seconds
        self._at = now
