"""The observations that the node agents append to Redis, and how they are followed."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Annotated, cast

import redis.asyncio
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from redis.exceptions import RedisError

from libra_predictor import metrics
from libra_predictor.settings import split_address

log = logging.getLogger(__name__)

STREAM = "libra:observations"
VERSION = b"1"
UNKNOWN_SIZE = -1
MAX_SIZE = 1 << 50  # bytes; a declared input size beyond 1 PiB is a mistake or an attack

_Reply = list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]

_BATCH = 1000  # entries
_BLOCK_MILLISECONDS = 1000
_CONNECT_SECONDS = 2.0
_REPLY_SECONDS = 5.0  # more than the server blocks
_BACK_OFF_SECONDS = (0.2, 5.0)


class Resources(BaseModel):
    """api.Resources."""

    model_config = ConfigDict(strict=True, frozen=True)

    cpu_milli: int = Field(ge=0, le=10_000_000)
    memory_bytes: int = Field(ge=0, le=1 << 50)


class Observation(BaseModel):
    """What is learned from of an api.Observation; its other fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)

    function: Annotated[str, Field(pattern=r"^[^/]+/[^/]+$")]  # namespace/revision
    size: int = Field(ge=UNKNOWN_SIZE, le=MAX_SIZE)  # bytes
    duration_ns: int = Field(ge=0)
    alone: bool
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


@dataclass(frozen=True, slots=True)
class Observed:
    """A sample of a function, with the time of its stream entry in Unix milliseconds."""

    function: str
    entry_milliseconds: int
    sample: Sample


def _usable(entry_id: str, fields: dict[bytes, bytes]) -> Observed | None:
    """Reads one stream entry; None, counted and where it is a mistake logged, when it teaches nothing."""
    metrics.OBSERVATIONS_READ.inc()
    version = fields.get(b"v")
    if version != VERSION:
        metrics.OBSERVATIONS_SKIPPED.labels(reason="version").inc()
        log.warning("entry %s of %s skipped: v is %r, accepted is %r", entry_id, STREAM, version, VERSION)
        return None
    try:
        observation = Observation.model_validate_json(fields.get(b"data", b""))
    except ValidationError as error:
        metrics.OBSERVATIONS_SKIPPED.labels(reason="malformed").inc()
        problems = "; ".join(f"data{''.join(f'.{p}' for p in e['loc'])}: {e['msg']}" for e in error.errors())
        log.warning("entry %s of %s skipped: %s", entry_id, STREAM, problems)
        return None
    if not observation.alone:
        metrics.OBSERVATIONS_SKIPPED.labels(reason="not_alone").inc()
        return None
    if not 200 <= observation.status < 300:
        metrics.OBSERVATIONS_SKIPPED.labels(reason="failed").inc()
        return None
    return Observed(
        function=observation.function,
        entry_milliseconds=int(entry_id.partition("-")[0]),
        sample=Sample(
            size=observation.size,
            duration_ns=observation.duration_ns,
            peak_cpu_milli=observation.peak.cpu_milli,
            peak_memory_bytes=observation.peak.memory_bytes,
            limit_cpu_milli=observation.limit.cpu_milli,
            limit_memory_bytes=observation.limit.memory_bytes,
            throttled_share=observation.throttled_share,
        ),
    )


class ObservationStream:
    """Follows the stream from its beginning, across losses of Redis."""

    def __init__(self, redis_addr: str) -> None:
        host, port = split_address(redis_addr)
        self._address = redis_addr
        self._redis = redis.asyncio.Redis(
            host=host,
            port=port,
            protocol=2,
            socket_connect_timeout=_CONNECT_SECONDS,
            socket_timeout=_REPLY_SECONDS,
        )
        self._last_id = "0-0"
        self._at_end = False

    async def close(self) -> None:
        await self._redis.aclose()

    async def batches(self) -> AsyncIterator[tuple[list[Observed], bool]]:
        """Yields what was appended since, and whether that was all there was."""
        least, most = _BACK_OFF_SECONDS
        delay, away = least, False
        while True:
            try:
                entries = await self._read()
            except (RedisError, OSError) as error:
                if not away:
                    log.warning(
                        "Redis at %s is away (%s): serving what was learned",
                        self._address,
                        error,
                    )
                away = True
                metrics.REDIS_UP.set(0)
                await asyncio.sleep(delay * random.uniform(0.5, 1))  # noqa: S311
                delay = min(2 * delay, most)
                continue
            if away:
                log.info("Redis at %s is back, following after entry %s", self._address, self._last_id)
            delay, away = least, False
            metrics.REDIS_UP.set(1)
            if entries:
                self._last_id = entries[-1][0]
            self._at_end = len(entries) < _BATCH
            read = (_usable(entry_id, fields) for entry_id, fields in entries)
            yield [observed for observed in read if observed is not None], self._at_end

    async def _read(self) -> list[tuple[str, dict[bytes, bytes]]]:
        reply = cast(
            _Reply,
            await self._redis.xread(
                {STREAM: self._last_id}, count=_BATCH, block=_BLOCK_MILLISECONDS if self._at_end else None
            ),
        )
        return [(entry_id.decode(), fields) for _, entries in reply for entry_id, fields in entries]
