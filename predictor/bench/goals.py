"""The goals for the figures, and the verdict on each."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from libra_predictor.estimators import ranked

HOLDS = "holds"
DOES_NOT_HOLD = "does not hold"
NOT_KNOWN = "not known"

_RESAMPLES = 500
_AT_ONCE = 20
_BEYOND = 5

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Goal:
    bound: float
    at_least: bool = False  # at most otherwise

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.bound:g}"

    def reached(self, value: float) -> bool:
        return value >= self.bound if self.at_least else value <= self.bound

    def verdict(self, interval: Interval | None) -> str:
        """The verdict on the whole 95 % interval, so that no goal holds by the friendly end alone."""
        if interval is None:
            return NOT_KNOWN
        ends = {self.reached(end) for end in interval}
        if len(ends) == 2:
            return NOT_KNOWN
        return HOLDS if ends.pop() else DOES_NOT_HOLD


# Shares, unless the name has a unit.
GOALS = {
    "under_cpu_related": Goal(0.01),
    "under_mem_related": Goal(0.01),
    "under_cpu_unrelated": Goal(0.03),
    "under_mem_unrelated": Goal(0.03),
    "harvest_cpu_related": Goal(0.90, at_least=True),
    "harvest_cpu_unrelated": Goal(0.80, at_least=True),
    "drift_under_first60": Goal(0.10),
    "drift_under_later": Goal(0.03),
    "table_mismatches": Goal(0.0),
    "table_lookup_p99_us": Goal(10.0),
    "infer_p99_ms": Goal(2.0),
    "train_ms": Goal(120.0),
    "update_ms": Goal(1.0),
}
# Counted completely, not sampled: they have no interval.
COUNTED = frozenset({"table_mismatches"})


def judged(metrics: Mapping[str, float], intervals: Mapping[str, Interval]) -> dict[str, str]:
    """The verdict on each goal: not known if it was not measured."""
    found = {}
    for name, goal in GOALS.items():
        interval = intervals.get(name)
        if name in COUNTED and name in metrics:
            interval = (metrics[name], metrics[name])
        found[name] = goal.verdict(interval if name in metrics else None)
    return found


def rows(metrics: Mapping[str, float], intervals: Mapping[str, Interval]) -> list[Sequence[str]]:
    """The rows of a table. The first is its head."""
    written: list[Sequence[str]] = [["goal", "", "measured", "95 %", ""]]
    for name, verdict in judged(metrics, intervals).items():
        interval = intervals.get(name)
        written.append(
            [
                name,
                str(GOALS[name]),
                f"{metrics[name]:.4g}" if name in metrics else "-",
                f"{interval[0]:.4g} to {interval[1]:.4g}" if interval else "-",
                verdict,
            ]
        )
    return written


def percentile_interval(values: Sequence[float], share: float) -> Interval | None:
    """The 95 % interval of a percentile; None without at least two blocks to draw from, or where fewer than
    five values are beyond it: no interval would then say how high it may be.

    Successive values are drawn together, because a disturbance of the machine hits several in a row.
    """
    blocks = [values[i : i + _AT_ONCE] for i in range(0, len(values), _AT_ONCE)]
    if len(blocks) < 2 or len(values) * (1 - share) < _BEYOND - 1e-9:
        return None
    rng = random.Random(0)  # noqa: S311
    found = sorted(
        ranked([v for block in rng.choices(blocks, k=len(blocks)) for v in block], share)
        for _ in range(_RESAMPLES)
    )
    return ranked(found, 0.025), ranked(found, 0.975)
