"""The predictor of one replica: it serves what is in the store, and learns while no other replica does."""

import asyncio
import logging
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from kserve import ModelRepository

from libra_predictor.connection import UNREACHABLE, BackOff, Connection
from libra_predictor.function import Function
from libra_predictor.learning import Learning
from libra_predictor.lock import LEASE_SECONDS, Hold, Lock, LockLostError
from libra_predictor.published import Published
from libra_predictor.replica import Replica
from libra_predictor.settings import Settings
from libra_predictor.store import StoreUnreachableError, open_store
from libra_predictor.tasks import first_of

log = logging.getLogger(__name__)

_TRIES_A_LEASE = 5
_LAST_SAVE_SECONDS = 2.0
_CATCH_UP_SECONDS = 10.0  # before a replica that has its functions is ready, whatever there is to learn still


class Predictor:
    """Keeps the models of the repository up to date until it is stopped.

    Raises ValueError for an unknown store.
    """

    def __init__(
        self, settings: Settings, repository: ModelRepository, lease_seconds: float = LEASE_SECONDS
    ) -> None:
        self._settings = settings
        self._lease = lease_seconds
        self._connection = Connection(settings.redis_addr, settings.redis_credentials)
        self._store = open_store(settings.store, self._connection)
        self._replica = Replica(repository, self._store, self._connection)
        self._lock = Lock(self._connection, lease_seconds)
        self._before: dict[str, Function] = {}
        self._redis_was_lost = False  # and the store does not have all of it again yet
        self._anew = False  # began with nothing as the learner, and has not saved for long enough since
        self._settled = settings.role == "serve"  # whether it need not learn more to be ready
        self._stopping = asyncio.Event()

    @property
    def ready(self) -> bool:
        """True once the store is read and, if this replica is the learner then, what was recorded is learned.

        A learner that has more to learn than it can in some seconds does not wait for that.
        """
        return self._replica.read.is_set() and self._settled

    @property
    def learning(self) -> bool:
        """Whether this replica is the one that learns."""
        return self._replica.learning

    def functions(self) -> Mapping[str, Published]:
        """The current answers, by namespace/revision."""
        return self._replica.functions

    async def run(self) -> None:
        """Serves and learns until stop. Raises any error that it cannot go on after."""
        try:
            await first_of(self._replica.follow(), self._learn())
        finally:
            await self._connection.close()

    def stop(self) -> None:
        """Makes run save what it learned and return."""
        self._stopping.set()

    async def _learn(self) -> None:
        if self._settings.role == "serve":
            await self._stopping.wait()
            return
        # The store knows fences that a lost Redis has forgotten.
        await first_of(self._replica.read.wait(), self._stopping.wait())
        back_off = BackOff()
        while not self._stopping.is_set():
            wait = self._lease / _TRIES_A_LEASE * random.uniform(0.5, 1)  # noqa: S311
            try:
                hold = await self._lock.acquire(
                    self._replica.fence, self._replica.history, self._anew or not self._replica.fence
                )
            except UNREACHABLE as error:
                self._connection.failed(error)
                hold, wait = None, back_off.next()
            else:
                back_off.reset()
            if hold is not None:
                await self._learn_while(hold)
                continue
            self._settled = True
            await first_of(asyncio.sleep(wait), self._stopping.wait())

    async def _learn_while(self, hold: Hold) -> None:
        self._replica.fence, self._replica.history = max(self._replica.fence, hold.fence), hold.history
        self._replica.learning = True
        hold = replace(hold, redis_was_lost=hold.redis_was_lost or self._redis_was_lost)
        learning = Learning(self._settings, self._connection, self._store, hold, self._replica)
        try:
            await first_of(
                self._lock.keep(hold),
                learning.run(self._before),
                self._settle(learning),
                self._stopping.wait(),
            )
            await self._save_last(learning)
        except LockLostError as lost:
            log.warning("this replica no longer learns: %s", lost)
        finally:
            if learning.loaded.is_set():
                self._before = learning.functions
            self._redis_was_lost = hold.redis_was_lost and not learning.saved
            self._anew = hold.anew and not learning.saved
            learning.end()
            self._replica.learning = False
            await self._lock.release(hold)

    async def _settle(self, learning: Learning) -> None:
        await learning.loaded.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CATCH_UP_SECONDS):
                await learning.caught_up.wait()
        self._settled = True
        await asyncio.Event().wait()

    async def _save_last(self, learning: Learning) -> None:
        try:
            async with asyncio.timeout(_LAST_SAVE_SECONDS):
                await learning.save()
        except (StoreUnreachableError, *UNREACHABLE) as error:
            log.warning("could not save the last observations, which will be learned again: %s", error)
