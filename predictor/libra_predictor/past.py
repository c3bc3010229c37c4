"""The calls that a function learns from: most of its memory, and not needed to answer."""

import zlib
from collections import deque
from collections.abc import Sequence
from typing import Self

from pydantic import BaseModel, ConfigDict

from libra_predictor.history import Call, Calls, Tally, TallyState
from libra_predictor.offset import Offset, OffsetState
from libra_predictor.settings import Settings

STARTUPS = 20  # samples kept to explain the start-up of containers
LATELY = 15  # calls


class PastState(BaseModel):
    """The complete state of a Past, for a store."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    window: Calls
    startups: Calls
    offsets: tuple[OffsetState, OffsetState]
    tallies: tuple[TallyState, TallyState, TallyState]
    missed: tuple[list[bool], list[bool]]
    # Format 1 has no CPU time, and formats up to 3 no spare.
    cpu_time_tally: TallyState = TallyState()
    spare: tuple[list[float], list[float]] = ([], [])


_FIELDS = set(PastState.model_fields)


class Past:
    """A function's last calls, and how they were answered."""

    __slots__ = ("cpu_time_tally", "missed", "offsets", "spare", "startups", "tallies", "window")

    def __init__(self, settings: Settings) -> None:
        self.window: deque[Call] = deque(maxlen=settings.window)
        self.startups: deque[Call] = deque(maxlen=STARTUPS)
        self.offsets = (
            Offset(settings.cpu_step_milli, settings.largest_cpu_milli),
            Offset(settings.memory_step_bytes, settings.largest_memory_bytes),
        )
        self.tallies = (Tally(), Tally(), Tally())
        self.cpu_time_tally = Tally()
        # Whether each of the last calls was missed, since the last refit or drift.
        self.missed: tuple[deque[bool], deque[bool]] = (deque(maxlen=LATELY), deque(maxlen=LATELY))
        # By how many options the answers exceed needs, since the last refit.
        self.spare: tuple[Sequence[float], Sequence[float]] = ((), ())

    @property
    def known(self) -> int:
        """How many calls there are to learn from."""
        return len(self.window)

    def state(self) -> PastState:
        return PastState(
            window=Calls.of(self.window),
            startups=Calls.of(self.startups),
            offsets=(self.offsets[0].state(), self.offsets[1].state()),
            tallies=(self.tallies[0].state(), self.tallies[1].state(), self.tallies[2].state()),
            missed=(list(self.missed[0]), list(self.missed[1])),
            cpu_time_tally=self.cpu_time_tally.state(),
            spare=(list(self.spare[0]), list(self.spare[1])),
        )

    @classmethod
    def restore(cls, state: PastState, settings: Settings) -> Self:
        """Restores a past. A window longer than the settings' keeps only its newest calls."""
        past = cls(settings)
        past.window.extend(state.window.calls())
        past.startups.extend(state.startups.calls())
        for offset, offset_state in zip(past.offsets, state.offsets, strict=True):
            offset.restore(offset_state)
        past.tallies = (Tally(state.tallies[0]), Tally(state.tallies[1]), Tally(state.tallies[2]))
        past.cpu_time_tally = Tally(state.cpu_time_tally)
        for missed, missed_state in zip(past.missed, state.missed, strict=True):
            missed.extend(missed_state)
        past.spare = state.spare
        return past


class Packed:
    """A Past in some 5 KiB; unpacked, a full window takes 190."""

    __slots__ = ("_state", "known")

    def __init__(self, state: PastState, settings: Settings) -> None:
        self.known = min(len(state.window.size), settings.window)
        self._state = zlib.compress(state.model_dump_json(include=_FIELDS).encode(), 1)

    def state(self) -> PastState:
        return PastState.model_validate_json(zlib.decompress(self._state))
