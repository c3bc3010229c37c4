"""Keeping what was learned, in Redis and in an object store."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from conftest import RedisServer
from hypothesis import given
from hypothesis import strategies as st
from obstore.store import MemoryStore

from libra_predictor.connection import Connection
from libra_predictor.function import Function, FunctionState
from libra_predictor.lock import FENCE, LOCK, Hold, Lock, LockLostError
from libra_predictor.observations import Sample
from libra_predictor.settings import parse
from libra_predictor.store import (
    FUNCTIONS,
    ObjectStore,
    RedisStore,
    Refused,
    StoreUnreachableError,
    open_store,
    packed,
    unpacked,
)

NAME = "default/thumb-00001"
SETTINGS = parse([], {})


def function_state(name: str = NAME, count: int = 3) -> FunctionState:
    function = Function(name, "default/thumb", SETTINGS)
    for i in range(1, count + 1):
        sample = Sample(1000 * i, 10**8, 250, 50 << 20, 1000, 256 << 20, 0.25, cpu_time_ns=10**6 * i)
        function.observe(f"1700000000000-{i}", sample)
    return function.state()


ENTRY = packed(function_state())


def hold(fence: int) -> Hold:
    return Hold("token", fence)


@given(st.integers(0, 250))
def test_an_entry_is_read_as_it_was_written(count: int) -> None:
    state = function_state(count=count)
    assert unpacked("key", NAME, packed(state)) == state


@given(st.integers(0, len(ENTRY) - 1), st.integers(1, 255))
def test_an_entry_of_which_any_byte_changed_is_refused(at: int, by: int) -> None:
    changed = ENTRY[:at] + bytes([ENTRY[at] ^ by]) + ENTRY[at + 1 :]
    refused = unpacked("key", NAME, changed)
    assert isinstance(refused, Refused)
    assert "entry key" in refused.problem


@given(st.integers(0, len(ENTRY) - 1))
def test_a_part_of_an_entry_is_refused(length: int) -> None:
    assert isinstance(unpacked("key", NAME, ENTRY[:length]), Refused)


def test_an_entry_with_more_after_it_is_refused() -> None:
    assert isinstance(unpacked("key", NAME, ENTRY + b"}"), Refused)


def test_an_entry_of_another_function_or_format_is_refused() -> None:
    other = unpacked("key", "default/other", ENTRY)
    assert other == Refused(f"entry key holds another function, {NAME!r}")
    newer = unpacked("key", NAME, ENTRY.replace(b'"format":4', b'"format":12', 1))
    assert newer == Refused("entry key has format 12, want 1 to 4", newer=True)
    older = unpacked("key", NAME, ENTRY.replace(b'"format":4', b'"format":0', 1))
    assert older == Refused("entry key has format 0, want 1 to 4")


@given(st.integers(0, 250), st.sampled_from([1, 2, 3]))
def test_an_entry_of_before_it_was_compressed_is_read(count: int, entry_format: int) -> None:
    state = function_state(count=count).model_copy(update={"format": entry_format})
    body = state.model_dump_json(exclude={"spare"}).encode()
    digest = hashlib.sha256(body).hexdigest()
    entry = b'{"format":%d,"sha256":"%s","state":%s}' % (entry_format, digest.encode(), body)
    assert unpacked("key", NAME, entry) == state
    changed = unpacked("key", NAME, entry.replace(b'"observed":', b'"observed":1', 1))
    assert changed == Refused("entry key does not match its checksum")


def test_an_entry_that_was_compressed_by_another_is_refused() -> None:
    body = b"no deflated data"
    entry = b'{"format":4,"sha256":"%s"}\n%s' % (hashlib.sha256(body).hexdigest().encode(), body)
    refused = unpacked("key", NAME, entry)
    assert isinstance(refused, Refused)
    assert refused.problem.startswith("entry key: Error -3 while decompressing data")


def test_a_store_that_is_not_known_is_refused() -> None:
    async def test() -> None:
        connection = Connection("127.0.0.1:1")
        with pytest.raises(ValueError, match=r"store 'foo://bucket': .*; want redis or a URI"):
            open_store("foo://bucket", connection)
        await connection.close()

    asyncio.run(test())


def with_redis(server: RedisServer, test: Callable[[Connection, RedisStore], Awaitable[None]]) -> None:
    async def run() -> None:
        connection = Connection(server.address)
        try:
            await test(connection, RedisStore(connection))
        finally:
            await connection.close()

    asyncio.run(run())


def test_redis_keeps_what_the_holder_of_the_lock_writes(redis_server: RedisServer) -> None:
    async def test(connection: Connection, store: RedisStore) -> None:
        held = await Lock(connection).acquire(0)
        assert held is not None
        states = [function_state(f"default/f-{i}", count=i) for i in range(70)]
        await store.save(states, held)
        index = await store.index()
        assert index.fence == held.fence == 1
        assert index.tokens.keys() == {state.name for state in states}
        names = [*index.tokens, "default/none"]
        assert await store.load(names) == {state.name: state for state in states}

        await store.save([function_state("default/f-1", count=40)], held)
        await store.drop(["default/f-2", "default/none"], held)
        after = await store.index()
        assert index.tokens.keys() - after.tokens.keys() == {"default/f-2"}
        assert "default/f-2" not in await store.load(["default/f-2"])

    redis_server.start()
    with_redis(redis_server, test)


def test_redis_refuses_the_write_of_one_that_lost_the_lock(redis_server: RedisServer) -> None:
    async def test(connection: Connection, store: RedisStore) -> None:
        stale = await Lock(connection).acquire(0)
        assert stale is not None
        assert await Lock(connection).acquire(0) is None
        await store.save([function_state()], stale)
        redis_server.client.delete(LOCK)  # as when it expires
        for taken_over in (False, True):
            if taken_over:
                learner = await Lock(connection).acquire(0)
                assert learner is not None
                assert learner.fence == 2
            with pytest.raises(LockLostError):
                await store.save([function_state(count=9)], stale)
            with pytest.raises(LockLostError):
                await store.drop([NAME], stale)
        assert await store.load([NAME]) == {NAME: function_state()}

    redis_server.start()
    with_redis(redis_server, test)


def test_a_lock_that_was_lost_with_redis_gets_a_greater_fence(redis_server: RedisServer) -> None:
    async def test(connection: Connection, _: RedisStore) -> None:
        lock = Lock(connection)
        held = await lock.acquire(57)
        assert held is not None
        assert (held.fence, held.redis_was_lost) == (58, True)
        assert int(redis_server.client.get(FENCE)) == 58  # type: ignore[arg-type]
        await lock.release(held)
        again = await lock.acquire(57)
        assert again is not None
        assert (again.fence, again.redis_was_lost) == (59, False)

    redis_server.start()
    with_redis(redis_server, test)


def test_a_learner_that_knows_less_than_was_lost_gives_way(redis_server: RedisServer) -> None:
    async def test(connection: Connection, store: RedisStore) -> None:
        first = Lock(connection, lease_seconds=0.3)
        knows_nothing = await first.acquire(0, anew=True)
        assert knows_nothing is not None
        assert await Lock(connection).acquire(1, knows_nothing.history) is None, "it knows no more"
        assert await Lock(connection).acquire(1) is None, "it does not know whether it does"
        knows_more = await Lock(connection).acquire(1, "before")
        assert knows_more is not None
        assert (knows_more.fence, knows_more.redis_was_lost) == (2, True)
        assert await Lock(connection).acquire(1, "before") is None, "it knows as much"
        with pytest.raises(LockLostError):
            await store.save([function_state()], knows_nothing)
        with pytest.raises(LockLostError):
            await store.complete(knows_nothing)
        with pytest.raises(LockLostError):
            await first.keep(knows_nothing)
        assert not (await store.index()).complete
        await store.complete(knows_more)
        assert (await store.index()).complete

    redis_server.start()
    with_redis(redis_server, test)


def test_a_lock_that_another_took_is_not_released_and_not_kept(redis_server: RedisServer) -> None:
    async def test(connection: Connection, _: RedisStore) -> None:
        lock = Lock(connection, lease_seconds=0.3)
        held = await lock.acquire(0)
        assert held is not None
        redis_server.client.set(LOCK, "another")
        with pytest.raises(LockLostError):
            await lock.keep(held)
        await lock.release(held)
        assert redis_server.client.get(LOCK) == b"another"

    redis_server.start()
    with_redis(redis_server, test)


def test_a_lock_is_lost_with_redis(redis_server: RedisServer) -> None:
    async def test(connection: Connection, _: RedisStore) -> None:
        lock = Lock(connection, lease_seconds=0.5)
        held = await lock.acquire(0)
        assert held is not None
        redis_server.stop()
        with pytest.raises(LockLostError, match="not renewed"):
            await lock.keep(held)
        await lock.release(held)

    redis_server.start()
    with_redis(redis_server, test)


def test_redis_that_is_away_is_an_unreachable_store(redis_server: RedisServer) -> None:
    async def test(_: Connection, store: RedisStore) -> None:
        for ask in (store.index(), store.load([NAME]), store.save([function_state()], hold(1))):
            with pytest.raises(StoreUnreachableError):
                await ask

    with_redis(redis_server, test)


def opened(directory: Path) -> ObjectStore:
    connection = Connection("127.0.0.1:1")
    store = open_store(directory.as_uri(), connection)
    assert isinstance(store, ObjectStore)
    return store


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    async def test() -> None:
        directory = tmp_path / "made" / "when needed"
        states = [function_state(f"default/f.{i}", count=i) for i in range(70)]
        writer = opened(directory)
        assert (await writer.index()).fence == 0
        await writer.save(states, hold(3))
        await writer.drop(["default/f.2"], hold(3))

        reader = opened(directory)
        index = await reader.index()
        assert index.fence == 3
        assert await reader.load(index.tokens.keys()) == {s.name: s for s in states if s is not states[2]}
        await writer.save([function_state("default/f.1", count=40)], hold(3))
        tokens = (await reader.index()).tokens
        assert {name for name in tokens if tokens[name] != index.tokens[name]} == {"default/f.1"}

    asyncio.run(test())


def test_a_stale_writer_of_objects_does_no_harm() -> None:
    async def test() -> None:
        memory = MemoryStore()
        stale, learner, reader = (ObjectStore("memory://", memory) for _ in range(3))
        await stale.save([function_state(count=1)], hold(9))
        await learner.index()
        await learner.save([function_state(count=2)], hold(10))
        await stale.save([function_state(count=7)], hold(9))
        assert await reader.load([NAME]) == {NAME: function_state(count=2)}
        assert (await reader.index()).fence == 10

        await stale.index()
        with pytest.raises(LockLostError, match="fence 10, above 9"):
            await stale.save([function_state(count=8)], hold(9))
        with pytest.raises(LockLostError):
            await stale.drop([NAME], hold(9))
        assert await reader.load([NAME]) == {NAME: function_state(count=2)}

    asyncio.run(test())


def test_a_reader_follows_to_the_object_of_a_new_learner() -> None:
    async def test() -> None:
        memory = MemoryStore()
        first, second, reader = (ObjectStore("memory://", memory) for _ in range(3))
        await first.save([function_state(count=1)], hold(1))
        await reader.index()
        await second.index()
        await second.save([function_state(count=2)], hold(2))
        assert await reader.load([NAME]) == {NAME: function_state(count=2)}
        await second.drop([NAME], hold(2))
        assert await reader.load([NAME]) == {}

    asyncio.run(test())


async def _load(store: ObjectStore) -> None:
    await store.load([NAME])


@pytest.mark.parametrize(
    ("what", "ask"),
    [
        ("put_async", lambda store: store.save([function_state()], hold(1))),
        ("get_async", _load),
        ("delete_async", lambda store: store.drop([NAME], hold(1))),
    ],
)
def test_a_store_that_hangs_is_away(
    monkeypatch: pytest.MonkeyPatch, what: str, ask: Callable[[ObjectStore], Awaitable[None]]
) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    async def run() -> None:
        store = ObjectStore("memory:", MemoryStore())
        await store.save([function_state()], hold(1))
        monkeypatch.setattr("libra_predictor.store._PATIENCE_SECONDS", 0.05)
        monkeypatch.setattr(f"libra_predictor.store.obstore.{what}", hang)
        async with asyncio.timeout(10):
            with pytest.raises(StoreUnreachableError, match=r"no answer within 0\.05 s") as raised:
                await ask(store)
        assert raised.value.__cause__ is None, "it would be taken for an error of Redis"

    asyncio.run(run())


def test_a_write_waits_for_one_that_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    wrote: list[bytes] = []

    async def run() -> None:
        hangs = asyncio.Event()

        async def put(_store: object, _path: str, entry: bytes) -> None:
            await hangs.wait()
            wrote.append(entry)

        monkeypatch.setattr("libra_predictor.store.obstore.put_async", put)
        store, older, newer = ObjectStore("memory:", MemoryStore()), function_state(), function_state(count=4)
        with monkeypatch.context() as impatient:
            impatient.setattr("libra_predictor.store._PATIENCE_SECONDS", 0.05)
            for state in (older, newer):
                with pytest.raises(StoreUnreachableError):
                    await store.save([state], hold(1))
        hangs.set()
        await store.save([newer], hold(1))
        assert wrote == [packed(older), packed(newer)]

    asyncio.run(run())


def test_a_bucket_that_is_gone_is_an_unreachable_store(monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(*_: object) -> None:
        raise FileNotFoundError("no such bucket")

    monkeypatch.setattr("libra_predictor.store.obstore.put_async", gone)
    with pytest.raises(StoreUnreachableError, match=r"write functions/.* to memory:: no such bucket"):
        asyncio.run(ObjectStore("memory:", MemoryStore()).save([function_state()], hold(1)))


def test_a_corrupt_object_is_refused_by_its_path(tmp_path: Path) -> None:
    async def test() -> None:
        store = opened(tmp_path)
        await store.save([function_state()], hold(4))
        path = tmp_path / "functions" / NAME / f"{4:020d}.json"
        path.write_bytes(path.read_bytes()[:100])
        refused = (await store.load([NAME]))[NAME]
        assert isinstance(refused, Refused)
        assert f"entry functions/{NAME}/{4:020d}.json of {tmp_path.as_uri()}" in refused.problem

    asyncio.run(test())


def test_entries_in_redis_are_where_they_are_documented(redis_server: RedisServer) -> None:
    async def test(connection: Connection, store: RedisStore) -> None:
        held = await Lock(connection).acquire(0)
        assert held is not None
        await store.save([function_state()], held)
        assert FUNCTIONS == "libra:predictor:{state}:functions"
        assert redis_server.client.hgetall(FUNCTIONS) == {NAME.encode(): ENTRY}

    redis_server.start()
    with_redis(redis_server, test)
