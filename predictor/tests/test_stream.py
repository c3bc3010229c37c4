"""The group of the learners, against a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from conftest import RedisServer

from libra_predictor import stream as stream_module
from libra_predictor.connection import Connection
from libra_predictor.lock import LockLostError
from libra_predictor.observations import STREAM
from libra_predictor.stream import BATCH, GROUP, Entry, Stream

Make = Callable[[int], Stream]


@pytest.fixture
def running(redis_server: RedisServer) -> RedisServer:
    redis_server.start()
    return redis_server


@asynccontextmanager
async def connected(server: RedisServer) -> AsyncIterator[Make]:
    connection = Connection(server.address)
    try:
        yield lambda fence: Stream(connection, fence)
    finally:
        await connection.close()


def run(server: RedisServer, test: Callable[[Make], Awaitable[None]]) -> None:
    async def with_connection() -> None:
        async with connected(server) as make:
            await test(make)

    asyncio.run(with_connection())


def append(server: RedisServer, count: int) -> list[str]:
    return [server.client.xadd(STREAM, {"v": "1"}).decode() for _ in range(count)]  # type: ignore[union-attr]


async def read(stream: Stream) -> list[str]:
    """All that it reads until there is nothing more."""
    ids: list[str] = []
    while entries := await stream.read():
        assert all(entry.fields == {b"v": b"1"} for entry in entries)
        ids += (entry.id for entry in entries)
    return ids


def test_reads_all_in_order_and_only_once(running: RedisServer) -> None:
    async def test(make: Make) -> None:
        ids = append(running, BATCH + 7)
        stream = make(1)
        opened = await stream.open()
        assert (opened.group_is_new, opened.newest) == (True, ids[-1])
        assert await read(stream) == ids
        assert await stream.read() == []
        more = append(running, 3)
        assert await read(stream) == more

    run(running, test)


def test_the_next_learner_reads_first_what_was_not_acknowledged(running: RedisServer) -> None:
    async def test(make: Make) -> None:
        ids = append(running, 10)
        first = make(1)
        await first.open()
        assert await read(first) == ids
        await first.acknowledge([*ids[:4], ids[6]])
        more = append(running, 5)

        second = make(2)
        assert not (await second.open()).group_is_new
        assert await read(second) == [*ids[4:6], *ids[7:], *more]

    run(running, test)


def test_one_without_the_lock_takes_and_acknowledges_nothing(running: RedisServer) -> None:
    async def test(make: Make) -> None:
        ids = append(running, 10)
        stale, learner = make(1), make(2)
        await stale.open()
        assert await read(stale) == ids
        await learner.open()
        with pytest.raises(LockLostError):
            await stale.read()
        with pytest.raises(LockLostError):
            await stale.acknowledge(ids)
        with pytest.raises(LockLostError):
            await stale.open()
        assert await read(learner) == ids

    run(running, test)


def test_what_was_taken_behind_its_back_is_still_read_in_order(running: RedisServer) -> None:
    """After Redis loses the fences, nothing stops an earlier learner from reading once more."""

    async def test(make: Make) -> None:
        learner, other = make(1), make(1)
        await learner.open()
        await other.open()
        ids = append(running, 2)
        assert await read(learner) == ids
        taken = append(running, 3)
        assert set(await read(other)) >= set(taken)
        more = append(running, 2)
        assert await read(learner) == taken + more

    run(running, test)


def test_a_lost_group_is_noticed_and_made_again(running: RedisServer) -> None:
    async def test(make: Make) -> None:
        stream = make(1)
        await stream.open()
        running.client.flushall()
        assert await stream.read() is None
        ids = append(running, 2)
        assert (await stream.open()).group_is_new
        assert await read(stream) == ids
        running.client.xgroup_destroy(STREAM, GROUP)
        assert await stream.read() is None

    run(running, test)


def test_entries_that_were_trimmed_while_pending_have_no_fields(running: RedisServer) -> None:
    async def test(make: Make) -> None:
        ids = append(running, 3)
        first = make(1)
        await first.open()
        await read(first)
        running.client.xtrim(STREAM, maxlen=1, approximate=False)
        second = make(2)
        await second.open()
        last = {b"v": b"1"}
        assert await second.read() == [Entry(ids[0], None), Entry(ids[1], None), Entry(ids[2], last)]

    run(running, test)


class Gauge:
    """Keeps what a gauge was set to."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def set(self, value: float) -> None:
        self.values.append(value)


def test_what_was_trimmed_before_it_was_read_is_counted(running: RedisServer) -> None:
    async def test(make: Make) -> None:
        append(running, 2)
        stream = make(1)
        await stream.open()
        await read(stream)
        append(running, 3 * BATCH)
        told = []
        for trimmed_to in (2 * BATCH, BATCH - 10, None):
            if trimmed_to is not None:
                running.client.xtrim(STREAM, maxlen=trimmed_to, approximate=False)
            entries = await stream.read()
            assert entries is not None
            told.append((len(entries), stream.lost, stream.waiting))
        assert told == [(BATCH, BATCH, BATCH), (BATCH - 10, 10, 0), (0, 0, 0)]
        append(running, 5)
        assert len(await stream.read() or ()) == 5
        assert (stream.lost, stream.waiting) == (0, 0)

    run(running, test)


def test_a_new_learner_counts_nothing_that_it_was_not_there_to_read(running: RedisServer) -> None:
    async def test(make: Make) -> None:
        append(running, 5)
        running.client.xtrim(STREAM, maxlen=2, approximate=False)
        stream = make(1)
        await stream.open()
        assert len(await stream.read() or ()) == 2
        assert stream.lost == 0
        await stream.open()
        append(running, 5)
        running.client.xtrim(STREAM, maxlen=2, approximate=False)
        assert len(await stream.read() or ()) == 2, "what is pending"
        assert len(await stream.read() or ()) == 2
        assert stream.lost == 3, "while it was away"

    run(running, test)


def test_nothing_waits_once_all_is_read_whatever_was_trimmed(
    running: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gauge = Gauge()
    monkeypatch.setattr(stream_module, "_behind", gauge)

    async def test(make: Make) -> None:
        stream = make(1)
        await stream.open()
        running.client.xadd(STREAM, {"v": "1"}, id="1700000000000-1")
        await read(stream)
        for i in range(2, 12):
            running.client.xadd(STREAM, {"v": "1"}, id=f"1700000000000-{i}")
        running.client.xtrim(STREAM, maxlen=5, approximate=False)
        await read(stream)
        assert gauge.values == [0] * 4

    run(running, test)


def test_the_age_of_the_newest_read_is_told_while_others_wait(
    running: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    gauge = Gauge()
    monkeypatch.setattr(stream_module, "_behind", gauge)

    async def test(make: Make) -> None:
        for i in range(BATCH + 1):
            running.client.xadd(STREAM, {"v": "1"}, id=f"1700000000000-{i}")
        stream = make(1)
        await stream.open()
        await stream.read()
        assert gauge.values == [stream.seconds - 1_700_000_000]
        stream.end()
        assert gauge.values[1:] == [0]
        await read(stream)
        assert gauge.values[2:] == [0, 0]

    run(running, test)


def test_wait_ends_with_a_new_entry(running: RedisServer) -> None:
    async def test(make: Make) -> None:
        append(running, 2)
        stream = make(1)
        await stream.open()
        await read(stream)
        waiting = asyncio.create_task(stream.wait())
        ids = append(running, 1)
        await waiting
        assert await read(stream) == ids

    run(running, test)


def test_history_has_what_was_acknowledged_too(running: RedisServer) -> None:
    async def test(make: Make) -> None:
        ids = append(running, 1003)
        stream = make(1)
        await stream.open()
        await stream.acknowledge(await read(stream))
        assert [entry.id async for entry in stream.history()] == ids

    run(running, test)
