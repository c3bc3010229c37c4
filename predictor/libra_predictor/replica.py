"""The answers that this replica serves, and how they follow the store while another replica learns."""

import asyncio
import logging
from collections.abc import Collection, Iterator
from contextlib import aclosing
from typing import Final
from weakref import WeakSet

from kserve import ModelRepository
from opentelemetry.metrics import CallbackOptions, Observation, get_meter

from libra_predictor.announcements import Announcement, announcements
from libra_predictor.connection import UNREACHABLE, BackOff, Connection
from libra_predictor.model import FunctionModel, model_name
from libra_predictor.published import Published, Stage
from libra_predictor.store import Index, Refused, Store, StoreUnreachableError, parts
from libra_predictor.tasks import first_of

log = logging.getLogger(__name__)

REREAD_SECONDS: Final = 5.0


class Replica:
    """Keeps a model in the repository for each function, from the store or from the learner here."""

    def __init__(self, repository: ModelRepository, store: Store, connection: Connection) -> None:
        self.functions: dict[str, Published] = {}
        self.read = asyncio.Event()  # set once the store has been read
        self.fence = 0  # the greatest seen
        self.history = ""  # of the store that the functions are from, or empty when that is not known
        self._learning = False
        self._repository = repository
        self._store = store
        self._connection = connection
        self._tokens: dict[str, str] = {}
        self._absent: tuple[int, frozenset[str]] = (0, frozenset())
        self._reading = asyncio.Lock()
        self._wanted = asyncio.Event()
        _replicas.add(self)

    @property
    def learning(self) -> bool:
        """While it is set, the learner here publishes, and the store is only written."""
        return self._learning

    @learning.setter
    def learning(self, learning: bool) -> None:
        self._learning = learning
        self._tokens.clear()
        self._absent = (0, frozenset())
        if not learning:
            self._wanted.set()

    def publish(self, published: Published) -> None:
        """Serves these answers from now on."""
        before = self.functions.get(published.function)
        self.functions[published.function] = published
        if before is None or _answer(before) != _answer(published):
            self._repository.update(FunctionModel(published))

    def forget(self, function: str) -> None:
        self._tokens.pop(function, None)
        if self.functions.pop(function, None) is not None:
            self._repository.get_models().pop(model_name(function), None)

    async def follow(self) -> None:
        """Follows for ever what the learner announces and stores."""
        await first_of(self._hear_all(), self._reread_all())

    async def _hear_all(self) -> None:
        back_off = BackOff()
        while True:
            try:
                async with aclosing(announcements(self._connection)) as heard:
                    self._wanted.set()
                    async for message in heard:
                        back_off.reset()
                        self._connection.worked()
                        if message is not None and not self._learning:
                            await self._hear(message)
            except UNREACHABLE as error:
                self._connection.failed(error)
            except StoreUnreachableError as error:
                log.warning("could not load the functions of an announcement: %s", error)
            await asyncio.sleep(back_off.next())

    async def _hear(self, message: Announcement) -> None:
        for said in message.functions:
            if not said.version:
                self.forget(said.function)
        changed = [
            said.function
            for said in message.functions
            if said.version and said.version != self._version(said.function)
        ]
        async with self._reading:
            await self._load(changed, {})

    def _version(self, function: str) -> str:
        published = self.functions.get(function)
        return "" if published is None else str(published.version)

    async def _reread_all(self) -> None:
        back_off, away = BackOff(), False
        while True:
            self._wanted.clear()
            wait = REREAD_SECONDS
            if not self._learning:
                try:
                    await self.reread()
                    if away:
                        log.info("the store is back")
                    away = False
                    back_off.reset()
                except StoreUnreachableError as error:
                    if not away:
                        log.warning("the store is away, serving the answers read before: %s", error)
                    away = True
                    if isinstance(error.__cause__, UNREACHABLE):
                        self._connection.failed(error.__cause__)
                    wait = back_off.next()
            try:
                async with asyncio.timeout(wait):
                    await self._wanted.wait()
            except TimeoutError:
                continue

    async def reread(self) -> None:
        """Loads what changed in the store since the last time. Raises StoreUnreachableError."""
        async with self._reading:
            index = await self._store.index()
            self.fence = max(self.fence, index.fence)
            if index.complete or not self.history:
                self.history = index.history
            changed = {name: t for name, t in index.tokens.items() if self._tokens.get(name) != t}
            await self._load(changed, changed)
            if not self._learning:
                self._drop_absent(index, frozenset(self.functions.keys() - index.tokens.keys()))
        self.read.set()

    def _drop_absent(self, index: Index, absent: frozenset[str]) -> None:
        # One look is not enough: objects are not listed at one moment.
        if index.complete and self._absent[0] == index.fence:
            for name in self._absent[1] & absent:
                log.info("function=%s forgotten: the store does not have it any more", name)
                self.forget(name)
        self._absent = (index.fence, absent)

    async def _load(self, functions: Collection[str], tokens: dict[str, str]) -> None:
        for some in parts(functions):
            loaded = await self._store.load(some)
            if self._learning:
                return
            for name, state in loaded.items():
                if isinstance(state, Refused):
                    log.error("function=%s not updated from the store: %s", name, state.problem)
                elif not self._knows_more(state.published):
                    self.publish(state.published)
                if name in tokens:
                    self._tokens[name] = tokens[name]

    def _knows_more(self, stored: Published) -> bool:
        """Whether this replica's answers are better: Redis was lost, and a learner has begun with nothing."""
        served = self.functions.get(stored.function)
        return served is not None and stored.is_anew(served)


def _answer(published: Published) -> tuple[object, ...]:
    """All of published that an answer shows."""
    estimators = (published.cpu.estimator, published.memory.estimator, published.duration.estimator)
    return published.version, published.stage, published.reason, estimators


_replicas: WeakSet[Replica] = WeakSet()


def _functions(_: CallbackOptions) -> Iterator[Observation]:
    for stage in Stage:
        count = sum(p.stage is stage for replica in _replicas for p in list(replica.functions.values()))
        yield Observation(count, {"stage": stage.value})


_meter = get_meter("libra_predictor")
_meter.create_observable_gauge(
    "libra.predictor.functions",
    [_functions],
    unit="{function}",
    description="Functions served, by `stage`.",
)
