"""How Redis is reached, and what is made of its absences."""

import logging
import random

import redis.asyncio
from opentelemetry.metrics import get_meter
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from libra_predictor.settings import split_address

log = logging.getLogger(__name__)

UNREACHABLE = (RedisError, OSError)

_CONNECT_SECONDS = 2.0
_REPLY_SECONDS = 5.0  # more than any of our reads blocks
_LEAST_SECONDS, _MOST_SECONDS = 0.2, 5.0

_up = get_meter("libra_predictor").create_gauge(
    "libra.predictor.redis.up", description="1 when the last exchange with Redis succeeded, else 0."
)


class BackOff:
    """Seconds to wait before the next try, doubled at each, with jitter."""

    def __init__(self) -> None:
        self._delay = _LEAST_SECONDS

    def next(self) -> float:
        delay, self._delay = self._delay, min(2 * self._delay, _MOST_SECONDS)
        return delay * random.uniform(0.5, 1)  # noqa: S311

    def reset(self) -> None:
        self._delay = _LEAST_SECONDS


class Connection:
    """A client of Redis that says once when Redis goes away, and once when it is back.

    It never tries again by itself: whoever asks knows for how long trying makes sense.
    """

    def __init__(self, address: str) -> None:
        host, port = split_address(address)
        self.address = address
        self.client = redis.asyncio.Redis(
            host=host,
            port=port,
            protocol=2,
            socket_connect_timeout=_CONNECT_SECONDS,
            socket_timeout=_REPLY_SECONDS,
            retry=Retry(NoBackoff(), 0),
        )
        self._away = False

    def failed(self, error: Exception) -> None:
        if not self._away:
            log.warning("Redis at %s is away (%s): serving what was learned", self.address, error)
        self._away = True
        _up.set(0)

    def worked(self) -> None:
        if self._away:
            log.info("Redis at %s is back", self.address)
        self._away = False
        _up.set(1)

    async def close(self) -> None:
        await self.client.aclose()
