"""The memory of a function's calls: the calls themselves, and tallies of how they were answered."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from libra_predictor.observations import Sample
from libra_predictor.published import Record

_BLOCK = 500  # calls


@dataclass(frozen=True, slots=True)
class Call:
    """A sample with the raw answers that it met, without the offset.

    An answer is 0 if there was none, or if its estimator has been replaced since.
    """

    sample: Sample
    cpu_milli: int
    memory_bytes: int


class Calls(BaseModel):
    """Calls in columns, oldest first, which take a quarter of the space of records."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    size: list[int]
    duration_ns: list[int]
    peak_cpu_milli: list[int]
    peak_memory_bytes: list[int]
    limit_cpu_milli: list[int]
    limit_memory_bytes: list[int]
    throttled_share: list[float]
    first: list[bool]
    failed: list[bool]
    answered_cpu_milli: list[int]
    answered_memory_bytes: list[int]
    # Missing in format 1. 0 means not known.
    cpu_time_ns: list[int] = Field(default_factory=lambda columns: [0] * len(columns.get("size", ())))

    @model_validator(mode="after")
    def _same_lengths(self) -> Self:
        lengths = {name: len(getattr(self, name)) for name in type(self).model_fields}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"the columns have the lengths {lengths}: want the same length for all")
        return self

    @classmethod
    def of(cls, calls: Iterable[Call]) -> Self:
        calls = list(calls)
        samples = [call.sample for call in calls]
        return cls(
            size=[s.size for s in samples],
            duration_ns=[s.duration_ns for s in samples],
            peak_cpu_milli=[s.peak_cpu_milli for s in samples],
            peak_memory_bytes=[s.peak_memory_bytes for s in samples],
            limit_cpu_milli=[s.limit_cpu_milli for s in samples],
            limit_memory_bytes=[s.limit_memory_bytes for s in samples],
            throttled_share=[float(s.throttled_share) for s in samples],
            first=[s.first for s in samples],
            failed=[s.failed for s in samples],
            answered_cpu_milli=[call.cpu_milli for call in calls],
            answered_memory_bytes=[call.memory_bytes for call in calls],
            cpu_time_ns=[s.cpu_time_ns for s in samples],
        )

    def calls(self) -> Iterator[Call]:
        for i, size in enumerate(self.size):
            yield Call(
                Sample(
                    size=size,
                    duration_ns=self.duration_ns[i],
                    peak_cpu_milli=self.peak_cpu_milli[i],
                    peak_memory_bytes=self.peak_memory_bytes[i],
                    limit_cpu_milli=self.limit_cpu_milli[i],
                    limit_memory_bytes=self.limit_memory_bytes[i],
                    throttled_share=self.throttled_share[i],
                    first=self.first[i],
                    failed=self.failed[i],
                    cpu_time_ns=self.cpu_time_ns[i],
                ),
                self.answered_cpu_milli[i],
                self.answered_memory_bytes[i],
            )


class Block(BaseModel):
    """Sums over some calls, in whole thousandths, so that a restart does not change them."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    calls: int = 0
    under_predicted: int = 0
    error_thousandths: int = 0


class TallyState(BaseModel):
    """The complete state of a Tally, for a store."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    before: Block = Block()
    now: Block = Block()


class Tally:
    """The record of the last 500 to 1000 calls."""

    def __init__(self, state: TallyState = TallyState()) -> None:  # noqa: B008
        self._before, self._now = state.before, state.now

    def add(self, under_predicted: bool, error: float) -> None:
        if self._now.calls == _BLOCK:
            self._before, self._now = self._now, Block()
        now = self._now
        self._now = Block(
            calls=now.calls + 1,
            under_predicted=now.under_predicted + under_predicted,
            error_thousandths=now.error_thousandths + round(1000 * error),
        )

    def record(self, estimator: str) -> Record:
        calls = self._before.calls + self._now.calls
        error = self._before.error_thousandths + self._now.error_thousandths
        return Record(
            estimator,
            calls,
            self._before.under_predicted + self._now.under_predicted,
            error / (1000 * calls) if calls else 0.0,
        )

    def state(self) -> TallyState:
        return TallyState(before=self._before, now=self._now)
