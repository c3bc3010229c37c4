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
LEASE_SECONDS: Final = 10.0

_ACQUIRE = """
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return {0, 0} end
local fence, above = redis.call('INCR', KEYS[2]), tonumber(ARGV[3])
if fence > above then return {fence, 0} end
redis.call('SET', KEYS[2], above + 1)
return {above + 1, 1}
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
    redis_was_lost: bool  # Redis' fence was behind one seen before


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

    async def acquire(self, above: int) -> Hold | None:
        """Takes the lock if it is free, with a fence greater than above. Raises UNREACHABLE."""
        token, asked = secrets.token_hex(16), time.monotonic()
        reply = self._acquire(keys=[LOCK, FENCE], args=[token, self._milliseconds, above])
        fence, went_back = await cast(Awaitable[list[int]], reply)
        if fence == 0:
            return None
        self._until = asked + self._lease
        _held.set(1)
        return Hold(token, fence, redis_was_lost=bool(went_back) and above > 0)

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
