"""What the node agents append to the stream of observations, and how one of its entries is read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

STREAM: Final = "libra:observations"
VERSION: Final = b"1"
UNKNOWN_SIZE: Final = -1
MAX_SIZE: Final = 1 << 50  # bytes; a declared input size beyond 1 PiB is a mistake or an attack

# Also a safe path: the object store keeps a function under its name.
_NAME = r"^[A-Za-z0-9_-]+/[A-Za-z0-9_-][A-Za-z0-9._-]*$"
_LONGEST_NAME = 512


class Resources(BaseModel):
    """api.Resources."""

    model_config = ConfigDict(strict=True, frozen=True)

    cpu_milli: int = Field(ge=0, le=10_000_000)
    memory_bytes: int = Field(ge=0, le=1 << 50)


class Observation(BaseModel):
    """What is learned from of an api.Observation; its other fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    function: Annotated[str, Field(pattern=_NAME, max_length=_LONGEST_NAME)]  # namespace/revision
    configuration: Annotated[str, Field(max_length=_LONGEST_NAME)] = ""  # namespace/configuration
    size: int = Field(ge=UNKNOWN_SIZE, le=MAX_SIZE)  # bytes
    duration_ns: int = Field(ge=0, lt=1 << 63)
    alone: bool
    first: bool = False  # the first invocation that ended in its container
    status: int
    peak: Resources
    limit: Resources
    throttled_share: float = Field(ge=0, le=1)


@dataclass(frozen=True, slots=True)
class Sample:
    """A usable observation, as small as a window of it should be."""

    size: int
    duration_ns: int
    peak_cpu_milli: int
    peak_memory_bytes: int
    limit_cpu_milli: int
    limit_memory_bytes: int
    throttled_share: float
    first: bool = False


@dataclass(frozen=True, slots=True)
class Observed:
    """A sample of a function."""

    function: str
    configuration: str
    sample: Sample


@dataclass(frozen=True, slots=True)
class Useless:
    """Why an entry teaches nothing; problem is empty unless the entry is a mistake of its writer."""

    reason: str
    problem: str = ""


def parse(fields: Mapping[bytes, bytes]) -> Observed | Useless:
    """Reads the fields of one stream entry."""
    version = fields.get(b"v")
    if version != VERSION:
        return Useless("version", f"v is {version!r}, accepted is {VERSION!r}")
    try:
        observation = Observation.model_validate_json(fields.get(b"data", b""))
    except ValidationError as error:
        problems = (f"data{''.join(f'.{p}' for p in e['loc'])}: {e['msg']}" for e in error.errors())
        return Useless("malformed", "; ".join(problems))
    if not observation.alone:
        return Useless("not_alone")
    if not 200 <= observation.status < 300:
        return Useless("failed")
    return Observed(
        function=observation.function,
        configuration=observation.configuration,
        sample=Sample(
            size=observation.size,
            duration_ns=observation.duration_ns,
            peak_cpu_milli=observation.peak.cpu_milli,
            peak_memory_bytes=observation.peak.memory_bytes,
            limit_cpu_milli=observation.limit.cpu_milli,
            limit_memory_bytes=observation.limit.memory_bytes,
            throttled_share=observation.throttled_share,
            first=observation.first,
        ),
    )


def id_order(entry_id: str) -> tuple[int, int]:
    """The order of a stream entry's id: Unix milliseconds, then the number within them."""
    milliseconds, _, number = entry_id.partition("-")
    return int(milliseconds), int(number or 0)
