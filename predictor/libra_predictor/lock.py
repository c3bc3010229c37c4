"""The fenced lock that makes one replica the learner.

A lock alone does not stop a learner that slept through its loss from writing. So each holder also gets a
fence, a number that only grows, and its writes are refused or ignored after a greater fence.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, cast

from opentelemetry.metrics import get_meter

from libra_predictor.connection import UNREACHABLE, BackOff, Connection

log = logging.getLogger(__name__)

LOCK: Final = "libra:predictor:{state}:lock"
FENCE: Final = "libra:predictor:{state}:fence"
HISTORY: Final = "libra:predictor:{state}:history"  # names all that Redis has had since it was empty
LEASE_SECONDS: Final = 10.0
_ANEW: Final = "anew-"  # begins the token of a holder that began with nothing

_ACQUIRE = """
local above, known, anew = tonumber(ARGV[3]), ARGV[4], ARGV[5]
local holder, fence = redis.call('GET', KEYS[1]), tonumber(redis.call('GET', KEYS[2]) or 0)
local history = redis.call('GET', KEYS[3]) or ARGV[1]
local lost = above > 0 and (fence < above or known ~= '' and known ~= history)
if holder and not (lost and string.find(holder, anew, 1, true) == 1) then return {0, 0, history} end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], math.max(fence, above))
redis.call('SET', KEYS[3], history)
return {redis.call('INCR', KEYS[2]), lost and 1 or 0, history}
"""
_RENEW = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('PEXPIRE', KEYS[1], ARGV[2]) or 0"
_RELEASE = "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0"

_held = get_meter("libra_predictor").create_gauge(
    "libra.predictor.lock.held", description="1 while this replica is the learner, else 0."
)


class LockLostError(Exception):
    """Another replica may be learning by now."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The right to learn, until it is lost."""

    token: str
    fence: int
    history: str = ""
    redis_was_lost: bool = False  # since this replica saw it
    anew: bool = False


class Lock:
    """One replica's side of the lock; not for use by several tasks at once."""

    def __init__(self, connection: Connection, lease_seconds: float = LEASE_SECONDS) -> None:
        self._connection = connection
        self._lease = lease_seconds
        self._milliseconds = round(1e3 * lease_seconds)
        self._until = 0.0  # on the monotonic clock
        self._acquire = connection.client.register_script(_ACQUIRE)
        self._renew = connection.client.register_script(_RENEW)
        self._release = connection.client.register_script(_RELEASE)

    async def acquire(self, above: int, history: str = "", anew: bool = False) -> Hold | None:
        """Takes the lock if it is free, with a fence greater than above. Raises UNREACHABLE.

        above is the greatest fence that this replica knows, and history is what Redis had under HISTORY then.
        anew says that this replica begins with nothing: then it loses the lock to one that knows what Redis
        has lost.
        """
        token, asked = (_ANEW if anew else "") + secrets.token_hex(16), time.monotonic()
        arguments: list[str | int] = [token, self._milliseconds, above, history, _ANEW]
        reply = self._acquire(keys=[LOCK, FENCE, HISTORY], args=arguments)
        fence, lost, now = await cast(Awaitable[tuple[int, int, bytes]], reply)
        if fence == 0:
            return None
        self._until = asked + self._lease
        _held.set(1)
        return Hold(token, fence, now.decode(), bool(lost), anew)

    async def keep(self, hold: Hold) -> None:
        """Renews the lock for as long as that works, then raises LockLostError."""
        back_off = BackOff()
        wait = self._lease / 3
        while True:
            await asyncio.sleep(wait)
            asked = time.monotonic()
            if asked >= self._until:
                raise LockLostError(f"the lock was not renewed for {self._lease:g} s")
            try:
                async with asyncio.timeout(self._until - asked):
                    renewed = await self._renew(keys=[LOCK], args=[hold.token, self._milliseconds])
            except UNREACHABLE as error:
                self._connection.failed(error)
                wait = max(0.0, min(back_off.next(), self._until - time.monotonic()))
                continue
            if not renewed:
                raise LockLostError("the lock no longer holds this replica's token")
            back_off.reset()
            self._until = asked + self._lease
            wait = self._lease / 3

    async def release(self, hold: Hold) -> None:
        """Gives the lock up, so that the next learner need not wait for it to expire."""
        self._until = 0.0
        _held.set(0)
        try:
            await self._release(keys=[LOCK], args=[hold.token])
        except UNREACHABLE as error:
            log.info("the learner's lock was not released (%s): it will expire", error)
