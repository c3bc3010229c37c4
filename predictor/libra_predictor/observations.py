"""The stream of observations that the node agents append to, and how to read its entries."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

STREAM: Final = "libra:observations"
VERSION: Final = b"1"
UNKNOWN_SIZE: Final = -1
MAX_SIZE: Final = 1 << 50  # bytes; a declared input size beyond 1 PiB is a mistake or an attack
# The activator refuses a table with values beyond 1 << 20 millicores, 1 << 40 bytes, a day or 30 CPU days, so
# one odd call would cost its function all answers. Nothing within these bounds exceeds those, nor does the
# option above it.
MAX_CPU_MILLI: Final = 1_000_000
MAX_MEMORY_BYTES: Final = 1_000_000_000_000
MAX_DURATION_MS: Final = 24 * 3600 * 1000
MAX_CPU_TIME_US: Final = 30 * 24 * 3600 * 10**6  # CPU days; an observed invocation lasts a minute at most
_MAX_DURATION_NS = MAX_DURATION_MS * 10**6
_MAX_CPU_TIME_NS = MAX_CPU_TIME_US * 10**3
_NEAR_MEMORY_LIMIT = 0.95

# Also a safe path: the object store keeps a function under its name.
_NAME = r"^[A-Za-z0-9_-]+/[A-Za-z0-9_-][A-Za-z0-9._-]*$"
_LONGEST_NAME = 512
_ENTRY_ID = re.compile(r"(\d+)-(\d+)")


class Resources(BaseModel):
    """api.Resources."""

    model_config = ConfigDict(strict=True, frozen=True)

    cpu_milli: int = Field(ge=0, le=MAX_CPU_MILLI)
    memory_bytes: int = Field(ge=0, le=MAX_MEMORY_BYTES)


class Observation(BaseModel):
    """The fields of an api.Observation that are learned from. The others are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    function: Annotated[str, Field(pattern=_NAME, max_length=_LONGEST_NAME)]  # namespace/revision
    configuration: Annotated[str, Field(max_length=_LONGEST_NAME)]  # namespace/configuration
    size: int = Field(ge=UNKNOWN_SIZE, le=MAX_SIZE)  # bytes
    duration_ns: int = Field(ge=0, le=_MAX_DURATION_NS)
    alone: bool
    first: bool  # the first invocation that ended in its container
    status: int
    peak: Resources
    cpu_time_ns: int = Field(ge=0, le=_MAX_CPU_TIME_NS)
    limit_at_peak: Resources
    throttled_share: float = Field(ge=0, le=1)


@dataclass(frozen=True, slots=True)
class Sample:
    """A usable observation, kept small because a window has many."""

    size: int
    duration_ns: int
    peak_cpu_milli: int
    peak_memory_bytes: int
    limit_cpu_milli: int  # at the peak; 0: none
    limit_memory_bytes: int
    throttled_share: float
    first: bool = False
    failed: bool = False  # at its memory limit, and so before it had used the CPU and time that it needs
    cpu_time_ns: int = 0  # 0: not known, as every invocation uses some

    @property
    def at_memory_limit(self) -> bool:
        near = _NEAR_MEMORY_LIMIT * self.limit_memory_bytes
        return self.limit_memory_bytes > 0 and self.peak_memory_bytes >= near


@dataclass(frozen=True, slots=True)
class Observed:
    """A sample of a function."""

    function: str
    configuration: str
    sample: Sample


@dataclass(frozen=True, slots=True)
class Useless:
    """Why an entry teaches nothing. problem is empty unless the entry's writer made a mistake."""

    reason: str
    problem: str = ""


def parse(fields: Mapping[bytes, bytes]) -> Observed | Useless:
    """Reads the fields of one stream entry."""
    version = fields.get(b"v")
    if version != VERSION:
        return Useless("version", f"v is {version!r}, want {VERSION!r}")
    try:
        observation = Observation.model_validate_json(fields.get(b"data", b""))
    except ValidationError as error:
        problems = (f"data{''.join(f'.{p}' for p in e['loc'])}: {e['msg']}" for e in error.errors())
        return Useless("malformed", "; ".join(problems))
    if not observation.alone:
        return Useless("not_alone")
    sample = Sample(
        size=observation.size,
        duration_ns=observation.duration_ns,
        peak_cpu_milli=observation.peak.cpu_milli,
        peak_memory_bytes=observation.peak.memory_bytes,
        limit_cpu_milli=observation.limit_at_peak.cpu_milli,
        limit_memory_bytes=observation.limit_at_peak.memory_bytes,
        throttled_share=observation.throttled_share,
        first=observation.first,
        failed=not 200 <= observation.status < 400,
        cpu_time_ns=observation.cpu_time_ns,
    )
    # A kill at the memory limit is the plainest sign of a demand. Other failures tell of none.
    if sample.failed and not (observation.status >= 500 and sample.at_memory_limit):
        return Useless("failed")
    return Observed(observation.function, observation.configuration, sample)


def id_order(entry_id: str) -> tuple[int, int]:
    """The order of a stream entry's id: Unix milliseconds, then the number within them.

    Raises ValueError if it is none.
    """
    match = _ENTRY_ID.fullmatch(entry_id)
    if match is None:
        raise ValueError(f"entry id {entry_id!r}: want milliseconds-number, as Redis assigns them")
    return int(match[1]), int(match[2])
