"""How replicas that only serve hear of what the learner learned."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from conftest import WAIT_SECONDS, RedisServer, in_time
from kserve import ModelRepository

from libra_predictor import replica as replica_module
from libra_predictor.announcements import CHANNEL, announce, announcement
from libra_predictor.connection import Connection
from libra_predictor.function import Function, FunctionState
from libra_predictor.lock import FENCE, Hold, Lock
from libra_predictor.published import Stage
from libra_predictor.replica import Replica
from libra_predictor.settings import parse
from libra_predictor.store import FUNCTIONS, RedisStore, StoreUnreachableError

NAME = "default/thumb-00001"
OTHER = "default/zip-00001"
MODEL = "default.thumb-00001"
SETTINGS = parse([], {})


def state(version: int, name: str = NAME, stage: Stage = Stage.MODELLED) -> FunctionState:
    function = Function(name, "default/thumb", SETTINGS)
    end = (2000, 1 << 30)
    function.published = replace(
        function.published, version=version, stage=stage, offset=(100, 0), largest=end
    )
    return function.state()


class Scene:
    """A learner's store and a replica that follows it."""

    def __init__(self, connection: Connection, hold: Hold) -> None:
        self.connection = connection
        self.hold = hold
        self.store = RedisStore(connection)
        self.repository = ModelRepository()
        self.replica = Replica(self.repository, RedisStore(connection), connection)

    def version(self, name: str = NAME) -> int | None:
        published = self.replica.functions.get(name)
        return None if published is None else published.version

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        following = asyncio.create_task(self.replica.follow())
        try:
            await in_time("the store is read", self.replica.read.is_set)
            yield
            assert not following.done(), following
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def play(server: RedisServer, scene: Callable[[Scene], Awaitable[None]]) -> None:
    async def run() -> None:
        connection = Connection(server.address)
        try:
            hold = await Lock(connection).acquire(0)
            assert hold is not None
            await scene(Scene(connection, hold))
        finally:
            await connection.close()

    server.start()
    asyncio.run(run())


def test_says_what_readers_in_go_expect(redis_server: RedisServer) -> None:
    async def scene(s: Scene) -> None:
        subscription = redis_server.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        subscription.subscribe(CHANNEL)
        subscription.get_message(timeout=WAIT_SECONDS)
        await announce(s.connection, announcement([state(1_700_000_000_000).published], ["default/old"]))
        message: Any = subscription.get_message(timeout=WAIT_SECONDS)
        assert json.loads(message["data"]) == {
            "v": 1,
            "functions": [
                {"function": NAME, "version": "1700000000000", "offset": [100, 0], "largest": [2000, 2**30]},
                {"function": "default/old", "version": "", "offset": [0, 0], "largest": [0, 0]},
            ],
        }
        subscription.close()

    play(redis_server, scene)


def test_follows_what_is_announced(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "REREAD_SECONDS", 3600.0)

    async def scene(s: Scene) -> None:
        await s.store.save([state(1)], s.hold)
        async with s.following():
            assert s.version() == 1
            assert MODEL in s.repository.get_models()
            await in_time("it listens", lambda: redis_server.client.pubsub_numsub(CHANNEL)[0][1] > 0)

            await s.store.save([state(2), state(5, "default/new-00001")], s.hold)
            redis_server.client.publish(CHANNEL, b"{")
            redis_server.client.publish(CHANNEL, b'{"v":2,"functions":[]}')
            changed = [state(2).published, state(5, "default/new-00001").published]
            await announce(s.connection, announcement(changed))
            await in_time("the new version", lambda: s.version() == 2)
            await in_time("the new function", lambda: s.version("default/new-00001") == 5)

            await announce(s.connection, announcement([], [NAME]))
            await in_time("it is dropped", lambda: s.version() is None)
            assert MODEL not in s.repository.get_models()

    play(redis_server, scene)


def test_rereads_what_it_did_not_hear(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "REREAD_SECONDS", 0.05)

    async def scene(s: Scene) -> None:
        await s.store.save([state(1), state(1, "default/b-1")], s.hold)
        async with s.following():
            await s.store.save([state(2)], s.hold)
            await s.store.complete(s.hold)
            await in_time("the new version", lambda: s.version() == 2)
            await s.store.drop([NAME], s.hold)
            await in_time("it is dropped", lambda: s.version() is None)
            assert s.version("default/b-1") == 1

    play(redis_server, scene)


def test_says_that_redis_is_back_once_it_hears_something(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "REREAD_SECONDS", 3600.0)

    async def scene(s: Scene) -> None:
        async with s.following():
            await in_time("it listens", lambda: redis_server.client.pubsub_numsub(CHANNEL)[0][1] > 0)
            s.connection.failed(ConnectionError("for the test"))
            await announce(s.connection, announcement([], [NAME]))
            await in_time("it is back", lambda: not s.connection._away)

    play(redis_server, scene)


def test_forgets_nothing_with_a_redis_that_was_lost(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "REREAD_SECONDS", 3600.0)

    async def scene(s: Scene) -> None:
        await s.store.save([state(1)], s.hold)
        await s.replica.reread()
        redis_server.stop()
        with pytest.raises(StoreUnreachableError):
            await s.replica.reread()
        redis_server.start()
        assert not redis_server.client.exists(FENCE)
        for _ in range(3):
            await s.replica.reread()
        assert s.version() == 1

    play(redis_server, scene)


def test_forgets_nothing_while_a_redis_that_was_lost_is_refilled(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "REREAD_SECONDS", 3600.0)

    async def scene(s: Scene) -> None:
        await s.store.save([state(1), state(1, OTHER)], s.hold)
        await s.replica.reread()
        redis_server.stop()
        with pytest.raises(StoreUnreachableError):
            await s.replica.reread()
        redis_server.start()

        knows_neither = await Lock(s.connection).acquire(0, anew=True)
        assert knows_neither is not None
        for _ in range(3):
            await s.replica.reread()
        assert (s.version(), s.version(OTHER)) == (1, 1)

        await s.store.save([state(9, stage=Stage.PROFILING)], knows_neither)
        await s.replica.reread()
        assert s.version() == 1, "it was learned before"

        refilling = await Lock(s.connection).acquire(s.replica.fence, s.replica.history)
        assert refilling is not None, "it takes over from one that does not know of what was lost"
        assert refilling.redis_was_lost
        await s.store.save([state(1)], refilling)
        for _ in range(3):
            await s.replica.reread()
        assert (s.version(), s.version(OTHER)) == (1, 1)

        await s.store.complete(refilling)
        for _ in range(3):
            await s.replica.reread()
        assert (s.version(), s.version(OTHER)) == (1, None)

    play(redis_server, scene)


def test_keeps_serving_what_it_had_of_an_entry_that_it_cannot_read(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene(s: Scene) -> None:
        await s.store.save([state(1)], s.hold)
        await s.replica.reread()
        await s.store.save([state(2)], s.hold)
        redis_server.client.hset(FUNCTIONS, NAME, b'{"format":5}')
        await s.replica.reread()
        assert s.version() == 1

    play(redis_server, scene)


def test_who_learns_here_is_not_overruled_by_the_store(redis_server: RedisServer) -> None:
    async def scene(s: Scene) -> None:
        await s.store.save([state(1)], s.hold)
        s.replica.learning = True
        s.replica.publish(state(7).published)
        await s.replica.reread()
        assert s.version() == 7
        s.replica.learning = False
        await s.replica.reread()
        assert s.version() == 1

    play(redis_server, scene)
