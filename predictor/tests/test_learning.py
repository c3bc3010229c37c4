"""The learner through the life of functions, within one process against a real Redis."""

import asyncio
import gc
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import STREAM, RedisServer, in_time, observation
from kserve import ModelRepository
from obstore.store import MemoryStore

from libra_predictor import learner as learner_module
from libra_predictor import learning as learning_module
from libra_predictor import refits as refits_module
from libra_predictor.announcements import CHANNEL, Announcement, announce
from libra_predictor.connection import Connection
from libra_predictor.function import Function, FunctionState
from libra_predictor.learner import Predictor
from libra_predictor.learning import Learning
from libra_predictor.lock import LOCK, Hold, LockLostError
from libra_predictor.observations import UNKNOWN_SIZE, Observed, parse
from libra_predictor.past import Past
from libra_predictor.published import Answers, Published, Record, Stage
from libra_predictor.replica import Replica
from libra_predictor.settings import parse as settings
from libra_predictor.store import FUNCTIONS, VERSIONS, ObjectStore, unpacked
from libra_predictor.stream import BATCH, GROUP, Entry, Opened, Stream
from libra_predictor.tables import constant

FUNCTION = "default/thumb-00001"
OTHER = "default/zip-00001"


def append(server: RedisServer, count: int, entry_id: str = "*", **changes: Any) -> None:
    for i in range(count):
        fields = {"v": "1", "data": json.dumps(observation(size=1000 + i, **changes))}
        assert isinstance(parse({k.encode(): v.encode() for k, v in fields.items()}), Observed)
        server.client.xadd(STREAM, fields, id=entry_id)  # type: ignore[arg-type]


@asynccontextmanager
async def learning(
    server: RedisServer, *options: str, refit_interval_seconds: float = 0.1
) -> AsyncIterator[Predictor]:
    quick = ["--save-interval-seconds", "0.1"]
    chosen = settings(["--redis-addr", server.address, *quick, *options], {})
    chosen = chosen.model_copy(update={"refit_interval_seconds": refit_interval_seconds})
    predictor = Predictor(chosen, ModelRepository())
    running = asyncio.create_task(predictor.run())
    await in_time("it is ready", lambda: predictor.ready)
    yield predictor
    predictor.stop()
    await running


def play(server: RedisServer, scene: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await scene()

    server.start()
    asyncio.run(run())


async def with_offset(server: RedisServer, predictor: Predictor) -> Published:
    """The published function after one of its calls was missed, with 40 calls recorded before."""
    await in_time("all is learned from", lambda: predictor.functions()[FUNCTION].observations == 40)
    assert predictor.functions()[FUNCTION].offset == (0, 0)
    append(server, 1, peak={"cpu_milli": 450, "memory_bytes": 50 << 20}, configuration="default/thumb")
    await in_time("it has an offset", lambda: predictor.functions()[FUNCTION].offset[0] > 0)
    return predictor.functions()[FUNCTION]


def test_one_that_is_ready_has_learned_what_was_recorded(redis_server: RedisServer) -> None:
    async def scene() -> None:
        append(redis_server, 40)
        async with learning(redis_server) as predictor:
            assert predictor.functions()[FUNCTION].stage is Stage.MODELLED

    play(redis_server, scene)


def test_one_that_cannot_catch_up_is_ready_with_what_it_has(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(_: Learning) -> None:
        await asyncio.Event().wait()

    async def scene() -> None:
        append(redis_server, 40)
        async with learning(redis_server):
            pass
        monkeypatch.setattr(learner_module, "_CATCH_UP_SECONDS", 0.0)
        monkeypatch.setattr(Learning, "_consume", never)
        async with learning(redis_server) as predictor:
            assert predictor.functions()[FUNCTION].stage is Stage.MODELLED

    play(redis_server, scene)


def test_one_whose_refits_are_always_overdue_is_ready(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Function, "refit_due", lambda _: True)

    async def scene() -> None:
        for name in "abc":
            append(redis_server, 12, function=f"default/{name}")
        async with learning(redis_server, refit_interval_seconds=0) as predictor:
            stages = [predictor.functions()[f"default/{name}"].stage for name in "abc"]
            assert stages == [Stage.MODELLED] * 3

    play(redis_server, scene)


def test_a_new_revision_begins_with_the_answers_of_the_last(redis_server: RedisServer) -> None:
    async def scene() -> None:
        append(redis_server, 40, function="default/thumb-00001", configuration="default/thumb")
        append(redis_server, 40, function="default/other-00001", configuration="default/other")
        async with learning(redis_server) as predictor:
            before = await with_offset(redis_server, predictor)
            append(redis_server, 1, function="default/thumb-00002", configuration="default/thumb")
            await in_time("it is known", lambda: "default/thumb-00002" in predictor.functions())
            inherited = predictor.functions()["default/thumb-00002"]
            assert inherited.stage is Stage.PROFILING
            assert inherited.at(1000) == before.at(1000)

            append(redis_server, 1, function="default/loner-00001")
            await in_time("it is known", lambda: "default/loner-00001" in predictor.functions())
            assert predictor.functions()["default/loner-00001"].at(1000) == (0, 0, 0)

    play(redis_server, scene)


def test_answers_that_outlast_redis_alone_keep_their_offset(redis_server: RedisServer) -> None:
    async def scene() -> None:
        append(redis_server, 40)
        async with learning(redis_server) as lost:
            before = await with_offset(redis_server, lost)
            async with learning(redis_server) as predictor:
                await in_time("it follows", lambda: predictor.functions() == {FUNCTION: before})
                assert not predictor.learning
                redis_server.stop()
                lost.stop()
                await in_time("it has given up", lambda: not lost.learning)
                redis_server.start()
                await in_time("the other learns", lambda: predictor.functions() != {FUNCTION: before})
                token: Any = redis_server.client.get(LOCK)
                assert not token.startswith(b"anew-"), "it knows what was lost"
                assert predictor.functions()[FUNCTION].at(1000) == before.at(1000)
                append(redis_server, 1)
                await in_time("it is learned", lambda: window(redis_server) == 1)
                after = predictor.functions()[FUNCTION]
                assert after.version > before.version
                assert after.at(1000) == before.at(1000)

    play(redis_server, scene)


def window(server: RedisServer, function: str = FUNCTION) -> int:
    """How many calls of a function are stored."""
    state = unpacked("test", function, server.client.hget(FUNCTIONS, function) or b"")  # type: ignore[arg-type]
    return len(state.window.size) if isinstance(state, FunctionState) else 0


def test_memory_is_kept_until_it_is_saved_again(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    opens = Stream.open
    lost_at_once = 3

    async def opened(stream: Stream) -> Opened:
        nonlocal lost_at_once
        result = await opens(stream)
        if redis_server.client.hlen(FUNCTIONS) == 0 and lost_at_once:
            lost_at_once -= 1
            raise LockLostError("for the test")
        return result

    async def scene() -> None:
        append(redis_server, 20)
        async with learning(redis_server) as predictor:
            await in_time("it is saved", lambda: window(redis_server) == 20)
            monkeypatch.setattr(Stream, "open", opened)
            redis_server.stop()
            await in_time("it has given up", lambda: not predictor.learning)
            redis_server.start()
            append(redis_server, 5)
            await in_time("it goes on with what it had", lambda: window(redis_server) == 25)
            assert lost_at_once == 0

    play(redis_server, scene)


def test_a_lost_redis_gets_the_newest_that_is_known(redis_server: RedisServer) -> None:
    def published(version: int, cpu_milli: int, stage: Stage = Stage.MODELLED) -> Published:
        answers = Answers(constant(cpu_milli), constant(1 << 26), constant(9), (cpu_milli, 1 << 26, 9))
        none, largest = Record("none"), (2000, 1 << 30)
        return Published(
            FUNCTION, "", version, stage, "", answers, (0, 0), largest, 40, 0, none, none, none, None
        )

    async def scene() -> None:
        async with learner(redis_server) as lost:
            of_monday = Function(FUNCTION, "", lost._settings, None)
            of_monday.published, of_monday.learned_to = published(5, 200), "5-0"
            begun_anew = Function(FUNCTION, "", lost._settings, None)
            begun_anew.learned_to = "8-0"
            for served, stored, want in (
                (None, None, 200),
                (published(5, 200), None, 200),
                (published(7, 900), None, 900),
                (published(7, 900), begun_anew, 900),
                (None, begun_anew, 200),
                (published(8, 0, Stage.PROFILING), begun_anew, 200),
            ):
                lost.functions = {} if stored is None else {FUNCTION: stored}
                lost._replica.functions = {} if served is None else {FUNCTION: served}
                lost._keep({FUNCTION: of_monday})
                assert lost.functions[FUNCTION].published.at(1000)[0] == want

    play(redis_server, scene)


def test_what_could_not_be_announced_is_announced_later(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 3

    async def fails(connection: Connection, message: Announcement) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ConnectionError("for the test")
        await announce(connection, message)

    async def scene() -> None:
        monkeypatch.setattr(learning_module, "announce", fails)
        heard = redis_server.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        heard.subscribe(CHANNEL)
        append(redis_server, 40)
        async with learning(redis_server):
            messages: list[str] = []

            def announced() -> bool:
                if (message := heard.get_message()) is not None:
                    messages.append(message["data"].decode())
                return any(FUNCTION in text for text in messages)

            await in_time("it is announced", announced)
            assert failures < 0
            await in_time("all is acknowledged", lambda: pending(redis_server) == 0)
        heard.close()

    play(redis_server, scene)


def test_drops_the_function_not_observed_for_longest(redis_server: RedisServer) -> None:
    def stored(key: str) -> set[str]:
        return {name.decode() for name in redis_server.client.hkeys(key)}  # type: ignore[union-attr]

    async def scene() -> None:
        for name in "abc":
            append(redis_server, 12, function=f"default/{name}")
        async with learning(redis_server, "--max-functions", "3") as predictor:
            append(redis_server, 1, function="default/a")
            append(redis_server, 1, function="default/d")
            await in_time("the new one is there", lambda: "default/d" in predictor.functions())
            kept = {"default/a", "default/c", "default/d"}
            assert predictor.functions().keys() == kept
            await in_time("what it keeps is stored", lambda: stored(FUNCTIONS) == stored(VERSIONS) == kept)

    play(redis_server, scene)


def test_functions_that_were_not_observed_lately_take_little_memory_and_learn_on(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning_module, "MOST_AWAKE", 2)
    names = [f"default/f-{i}" for i in range(70)]

    def awake() -> int:
        gc.collect()
        return sum(isinstance(found, Past) for found in gc.get_objects())

    def stored() -> list[int]:
        return [window(redis_server, name) for name in names]

    async def scene() -> None:
        for name in names:
            append(redis_server, 2, function=name)
        before = awake()
        async with learning(redis_server):
            await in_time("all are saved", lambda: stored() == [2] * 70)
            assert awake() - before == 2
        async with learning(redis_server):
            assert awake() == before
            for name in reversed(names):
                append(redis_server, 1, function=name)
            await in_time("all are saved again", lambda: stored() == [3] * 70)
            assert awake() - before == 2

    play(redis_server, scene)


def test_retires_what_is_not_called_any_more(redis_server: RedisServer) -> None:
    async def scene() -> None:
        append(redis_server, 12, "1700000000000-*", function="default/old")
        append(redis_server, 12, function="default/new")
        async with learning(redis_server) as predictor:
            await in_time("it is retired", lambda: "default/old" not in predictor.functions())
            assert "default/new" in predictor.functions()
        assert redis_server.client.hkeys(FUNCTIONS) == [b"default/new"]

    play(redis_server, scene)


def test_a_learner_owns_all_objects_before_one_that_it_took_over_from_wakes(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    store = ("--store", tmp_path.as_uri())

    def objects() -> list[str]:
        return [path.name for path in tmp_path.rglob("*.json")]

    async def scene() -> None:
        append(redis_server, 12)
        for fence in (1, 2):
            async with learning(redis_server, *store):
                pass
            assert objects() == [f"{fence:020d}.json"]

    play(redis_server, scene)


def test_one_that_was_taken_over_from_drops_and_announces_nothing(redis_server: RedisServer) -> None:
    async def scene() -> None:
        connection = Connection(redis_server.address)
        store = ObjectStore("memory://", MemoryStore())
        replica = Replica(ModelRepository(), store, connection)
        chosen = settings(["--redis-addr", redis_server.address], {})
        learner = Learning(chosen, connection, store, Hold("token", 1), replica)
        await learner.save()
        await Stream(connection, 2).open()
        with pytest.raises(LockLostError):
            await learner.save()
        await connection.close()

    play(redis_server, scene)


def test_what_cannot_be_read_nor_rebuilt_is_dropped_unless_a_newer_predictor_wrote_it(
    redis_server: RedisServer,
) -> None:
    async def scene() -> None:
        append(redis_server, 12)
        entries = {FUNCTION: b"{", "default/gone": b"{", "default/newer": b'{"format":5,"body":{}}'}
        for name, entry in entries.items():
            redis_server.client.hset(FUNCTIONS, name, entry)
            redis_server.client.hset(VERSIONS, name, "1:modelled:12")
        async with learning(redis_server) as predictor:
            assert predictor.functions().keys() == {FUNCTION}
        left = {FUNCTION.encode(), b"default/newer"}
        assert set(redis_server.client.hkeys(FUNCTIONS)) == left
        assert redis_server.client.hget(FUNCTIONS, "default/newer") == entries["default/newer"]

    play(redis_server, scene)


def test_goes_on_after_what_it_cannot_read(redis_server: RedisServer) -> None:
    async def scene() -> None:
        async with learning(redis_server) as predictor:
            redis_server.client.xadd(STREAM, {"v": "2", "data": "{}"})
            redis_server.client.xadd(STREAM, {"v": "1", "data": "{"})
            redis_server.client.xadd(STREAM, {"other": "field"})
            append(redis_server, 12)
            await in_time("it is learned", lambda: "default/thumb-00001" in predictor.functions())
        groups: Any = redis_server.client.xinfo_groups(STREAM)
        assert [(g["name"], g["pending"], g["lag"]) for g in groups] == [(GROUP.encode(), 0, 0)]

    play(redis_server, scene)


def entry(at: int, function: str, **changes: Any) -> Entry:
    data = json.dumps(observation(function=function, **changes)).encode()
    return Entry(f"1700000000000-{at}", {b"v": b"1", b"data": data})


@asynccontextmanager
async def learner(server: RedisServer, *options: str, fence: int = 1) -> AsyncIterator[Learning]:
    """A learner whose work the test does."""
    connection = Connection(server.address)
    store = ObjectStore("memory://", MemoryStore())
    replica = Replica(ModelRepository(), store, connection)
    chosen = settings(["--redis-addr", server.address, *options], {})
    try:
        yield Learning(chosen, connection, store, Hold("token", fence), replica)
    finally:
        await connection.close()


def test_one_that_learns_again_keeps_the_functions_that_are_as_they_were(redis_server: RedisServer) -> None:
    async def scene() -> None:
        append(redis_server, 40)
        append(redis_server, 40, function=OTHER)
        async with learner(redis_server) as first:
            working = asyncio.create_task(first.run({}))
            await in_time("it has caught up", first.caught_up.is_set)
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await first.save()
            before = dict(first.functions)
            changed = before[OTHER]
            again = parse(entry(0, OTHER).fields or {})
            assert isinstance(again, Observed)
            changed.observe("1800000000000-0", again.sample)
        async with learner(redis_server, fence=2) as second:
            second._store = first._store
            await second._begin(before)
            assert second.functions[FUNCTION] is before[FUNCTION]
            assert second.functions[OTHER] is not changed
            assert second.functions[OTHER].state().learned_to < changed.learned_to

    play(redis_server, scene)


def test_only_what_was_trimmed_before_it_was_learned_is_noted(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with learner(redis_server) as learning:
            for i in range(3):
                learning._take(entry(i, FUNCTION))
            again = [Entry(f"1700000000000-{i}", None) for i in range(6)]
            learning._note_trimmed(again[:3])
            assert not caplog.messages
            learning._note_trimmed(again)
            for trimmed in again:
                learning._take(trimmed)
            assert len(learning._unacknowledged) == 6, "all are acknowledged"
            learning._note_trimmed(again)
        assert caplog.messages == [
            f"3 entries of {STREAM}, from 1700000000000-3 on, were trimmed before they were learned"
        ]

    with caplog.at_level("WARNING", logger="libra_predictor.learning"):
        play(redis_server, scene)


def test_far_behind_it_learns_some_of_what_it_knows_well_and_all_of_the_rest(
    redis_server: RedisServer,
) -> None:
    async def scene() -> None:
        async with learner(redis_server, "--window", "20", "--refit-every", "1000") as learning:
            for i in range(20):
                learning._take(entry(i, FUNCTION))
                learning._take(entry(100 + i, OTHER))
            for name in (FUNCTION, OTHER):
                function = learning.functions[name]
                function.adopt(function.start_refit()())
            limit = {"cpu_milli": 8000, "memory_bytes": 256 << 20}
            for i, cpu_milli in enumerate((450, 950, 1950)):
                peak = {"cpu_milli": cpu_milli, "memory_bytes": 50 << 20}
                learning._take(entry(1000 + i, OTHER, peak=peak, limit_at_peak=limit))
            assert learning.functions[OTHER].published.stage is Stage.DRIFTED
            learning._stream.waiting = 9 * BATCH
            for i in range(40):
                learning._take(entry(2000 + i, FUNCTION))
                learning._take(entry(3000 + i, "default/young"))
                learning._take(entry(4000 + i, OTHER))
            since_refit = {n: f.state().since_refit for n, f in learning.functions.items()}
            assert since_refit == {FUNCTION: 4, "default/young": 40, OTHER: 3 + 40}
            assert list(learning.functions)[-1] == OTHER

            learning._stream.waiting = BATCH - 1
            learning._take(entry(5000, FUNCTION))
            assert learning.functions[FUNCTION].state().since_refit == 5

    play(redis_server, scene)


def test_one_that_learns_no_more_is_not_behind(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[Stream] = []
    monkeypatch.setattr(Stream, "end", lambda stream: ended.append(stream))

    async def scene() -> None:
        async with learning(redis_server):
            assert not ended
        assert len(ended) == 1

    play(redis_server, scene)


def test_one_that_only_serves_is_ready_without_learning(redis_server: RedisServer) -> None:
    async def scene() -> None:
        append(redis_server, 40)
        async with learning(redis_server):
            pass
        async with learning(redis_server, "--role", "serve") as predictor:
            assert not predictor.learning
            assert predictor.functions()[FUNCTION].stage is Stage.MODELLED

    play(redis_server, scene)


def test_a_refit_that_can_wait_does_and_one_that_cannot_does_not(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(refits_module, "WHENEVER_SHARE", 1e-9)

    def refits(haste: str) -> int:
        return sum(f"refit haste={haste} " in record.getMessage() for record in caplog.records)

    async def scene() -> None:
        append(redis_server, 200)
        async with learning(redis_server):
            append(redis_server, 25)
            await in_time("the first need not wait", lambda: refits("whenever") == 1)
            soon = refits("soon")  # while the window was not full
            append(redis_server, 50)
            await in_time("it is read", lambda: pending(redis_server) == 0)
            assert (refits("whenever"), refits("soon")) == (1, soon)
            # Had the others been refitted meanwhile, this one would have none that is due.
            append(redis_server, 1, peak={"cpu_milli": 250, "memory_bytes": 250 << 20})
            await in_time("it is refitted", lambda: refits("soon") == soon + 1)
            assert refits("whenever") == 1

    with caplog.at_level("INFO", logger="libra_predictor.learning"):
        play(redis_server, scene)


def pending(server: RedisServer) -> int:
    """Entries that are not read, or read and not acknowledged."""
    (group,) = server.client.xinfo_groups(STREAM)
    return int(group["pending"]) + int(group["lag"] or 0)


def unread(server: RedisServer) -> int:
    (group,) = server.client.xinfo_groups(STREAM)
    return int(group["lag"] or 0)


def test_answers_that_change_are_saved_at_once_and_the_rest_in_time(redis_server: RedisServer) -> None:
    def stored(function: str = FUNCTION) -> FunctionState | None:
        entry = redis_server.client.hget(FUNCTIONS, function)
        state = unpacked("test", function, entry or b"")  # type: ignore[arg-type]
        return state if isinstance(state, FunctionState) else None

    async def scene() -> None:
        heard = redis_server.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        heard.subscribe(CHANNEL)
        append(redis_server, 40)
        async with learning(redis_server, "--save-interval-seconds", "3600") as predictor:

            def saved() -> bool:
                state = stored()
                return state is not None and state.published.observations == 40

            await in_time("its answers are saved", saved)
            state = stored()
            assert state is not None
            assert state.published.version == predictor.functions()[FUNCTION].version
            append(redis_server, 3)
            # A change by them would be saved and announced no later than the calls after them.
            append(redis_server, 40, function=OTHER)
            await in_time("what comes after them is saved", lambda: stored(OTHER) is not None)
            assert stored() == state, "nothing of it changes an answer"
            messages = [heard.get_message() for _ in range(100)]
            announced = [Announcement.model_validate_json(m["data"]) for m in messages if m is not None]
            versions = [
                said.version
                for message in announced
                for said in message.functions
                if said.function == FUNCTION
            ]
            assert versions[-1] == str(state.published.version)
            assert versions == sorted(set(versions))
            await in_time("all is read", lambda: unread(redis_server) == 0)
        last = stored()
        assert last is not None
        assert (len(last.window.size), pending(redis_server)) == (43, 0)
        heard.close()

    play(redis_server, scene)


def test_another_estimator_answers_as_soon_as_it_is_ready(redis_server: RedisServer) -> None:
    async def scene() -> None:
        append(redis_server, 35, peak={"cpu_milli": 850, "memory_bytes": 50 << 20})
        append(redis_server, 5)
        append(redis_server, 3, function="default/young-00001")
        heard = redis_server.client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        heard.subscribe(CHANNEL)
        async with learning(redis_server) as first:
            await in_time("all is learned from", lambda: first.functions()[FUNCTION].observations == 40)
        answers, versions = [], []
        for options in (
            (),
            ("--estimator", "moving-window", "--durations", "unlimited"),
            (),
        ):
            async with learning(redis_server, *options) as predictor:
                ready = predictor.functions()[FUNCTION]
                answers.append((ready.at(1000), ready.at(UNKNOWN_SIZE)))
                versions.append(ready.version)
                assert ready.stage is Stage.MODELLED
                assert predictor.functions()["default/young-00001"].at(1000) == (0, 0, 0)
            stored = unpacked("test", FUNCTION, redis_server.client.hget(FUNCTIONS, FUNCTION) or b"")  # type: ignore[arg-type]
            assert isinstance(stored, FunctionState)
            assert stored.published == ready
        assert answers == [
            ((900, 64 << 20, 120),) * 2,
            ((300, 64 << 20, 86_400_000),) * 2,
            ((900, 64 << 20, 120),) * 2,
        ]
        assert versions == sorted(set(versions))
        told: set[int] = set()

        def all_told() -> bool:
            message = heard.get_message()
            if message is not None:
                functions = Announcement.model_validate_json(message["data"]).functions
                told.update(int(said.version) for said in functions if said.function == FUNCTION)
            return told >= set(versions)

        await in_time("every change is announced", all_told)
        heard.close()

    play(redis_server, scene)


def test_too_few_observations_for_another_estimator_answer_nothing(redis_server: RedisServer) -> None:
    async def scene() -> None:
        append(redis_server, 20)
        async with learning(redis_server) as predictor:
            assert predictor.functions()[FUNCTION].at(1000)[0] == 300
        options = ("--estimator", "moving-window", "--min-observations", "21")
        async with learning(redis_server, *options) as predictor:
            assert predictor.functions()[FUNCTION].at(1000) == (0, 0, 0)
            append(redis_server, 1)
            await in_time("it is enough", lambda: predictor.functions()[FUNCTION].at(1000)[0] == 300)

    play(redis_server, scene)
