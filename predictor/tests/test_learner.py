"""Learning processes against a real Redis: killed, paused, restarted, and taken over from."""

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from conftest import PREDICTOR, STREAM, RedisServer, eventually, observation, stop

from libra_predictor.function import FunctionState
from libra_predictor.lock import FENCE, LOCK
from libra_predictor.published import Stage
from libra_predictor.store import FUNCTIONS, unpacked
from libra_predictor.stream import GROUP

FUNCTION = "default/thumb-00001"
LEASE_SECONDS = "1.5"


class Process:
    """One learning process."""

    def __init__(self, address: str, log: Path, *options: str) -> None:
        self._log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.learning_process", LEASE_SECONDS),
                    *("--redis-addr", address, "--refit-interval-seconds", "0.1"),
                    *("--save-interval-seconds", "0.1", *options),
                ],
                cwd=PREDICTOR,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def log(self) -> str:
        return self._log.read_text()

    def says(self, text: str) -> None:
        def said() -> bool | None:
            assert self.process.poll() is None, self.log()
            return text in self.log() or None

        eventually(f"the log says {text!r}", said)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


Start = Callable[..., Process]


@pytest.fixture
def start(redis_server: RedisServer, tmp_path: Path) -> Iterator[Start]:
    processes: list[Process] = []

    def start_one(*options: str) -> Process:
        log = tmp_path / f"learner-{len(processes)}.log"
        processes.append(Process(redis_server.address, log, *options))
        return processes[-1]

    redis_server.start()
    yield start_one
    for started in processes:
        if started.process.poll() is None:
            started.signal(signal.SIGCONT)
            stop(started.process)


def stored(redis_server: RedisServer) -> dict[str, FunctionState]:
    states = {}
    entries = cast(dict[bytes, bytes], redis_server.client.hgetall(FUNCTIONS))
    for name, entry in entries.items():
        state = unpacked("test", name.decode(), entry)
        assert isinstance(state, FunctionState)
        states[state.name] = state
    return states


def state_of(redis_server: RedisServer, function: str = FUNCTION) -> FunctionState | None:
    return stored(redis_server).get(function)


def unread(redis_server: RedisServer) -> int:
    """Entries that are not acknowledged."""
    for group in redis_server.client.xinfo_groups(STREAM):
        if group["name"] == GROUP.encode():
            return int(group["lag"] or 0) + int(group["pending"])
    return -1


def fewer_unread(redis_server: RedisServer, than: int) -> bool | None:
    return unread(redis_server) < than or None


def entry_of(redis_server: RedisServer, function: str = FUNCTION) -> bytes:
    return cast(bytes, redis_server.client.hget(FUNCTIONS, function))


def all_acknowledged(redis_server: RedisServer) -> None:
    eventually("all is acknowledged", lambda: unread(redis_server) == 0 or None)


def observe(redis_server: RedisServer, count: int, function: str = FUNCTION, **changes: Any) -> None:
    with redis_server.client.pipeline(transaction=False) as pipeline:
        for i in range(count):
            one = observation(function=function, size=1000 + i, **changes)
            pipeline.xadd(STREAM, {"v": "1", "data": json.dumps(one)})
        pipeline.execute()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("store", ["redis", "file"])
def test_learns_each_observation_once_across_kills(
    redis_server: RedisServer, start: Start, tmp_path: Path, seed: int, store: str
) -> None:
    chance = random.Random(seed)  # noqa: S311
    options = ["--window", "100000", "--min-observations", "100000"]
    if store == "file":
        options += ["--store", (tmp_path / "store").as_uri()]
    appended: dict[str, list[int]] = {f"default/f-{i}": [] for i in range(5)}

    def append(count: int) -> None:
        with redis_server.client.pipeline(transaction=False) as pipeline:
            for _ in range(count):
                function = chance.choice(list(appended))
                size = sum(map(len, appended.values()))
                appended[function].append(size)
                one = json.dumps(observation(function=function, size=size))
                pipeline.xadd(STREAM, {"v": "1", "data": one})
            pipeline.execute()

    append(600)
    learner = start(*options)
    for _ in range(5):
        learner.says("learning under fence")
        for _ in range(chance.randrange(6)):
            append(chance.randrange(100))
        read = chance.randrange(1, 600)
        eventually("some is learned", partial(fewer_unread, redis_server, read))
        append(chance.randrange(200))
        learner.kill()
        append(chance.randrange(50))
        learner = start(*options)
    append(50)
    learner.says("learning under fence")
    all_acknowledged(redis_server)
    assert stop(learner.process) == 0

    if store == "redis":
        states = stored(redis_server)
    else:
        states = {}
        for path in (tmp_path / "store").glob("functions/*/*/*.json"):
            name = "/".join(path.parts[-3:-1])
            state = unpacked(str(path), name, path.read_bytes())
            assert isinstance(state, FunctionState)
            assert name not in states, "older objects are deleted"
            states[name] = state
    assert {name: state.window.size for name, state in states.items()} == appended


def test_what_was_learned_and_not_saved_is_learned_again(redis_server: RedisServer, start: Start) -> None:
    observe(redis_server, 40)
    observe(redis_server, 10, "default/young-00001")
    first = start("--save-interval-seconds", "3600")
    first.says("observations=40")

    def modelled() -> bool | None:
        state = state_of(redis_server)
        return (state is not None and state.published.stage is Stage.MODELLED) or None

    eventually("its answers are saved", modelled)
    observe(redis_server, 4)
    eventually("they are read", lambda: redis_server.client.xinfo_groups(STREAM)[0]["pending"] == 54 or None)
    first.kill()

    second = start()
    second.says("learning under fence 2")
    all_acknowledged(redis_server)
    windows = {name: state.window.size for name, state in stored(redis_server).items()}
    assert windows == {
        FUNCTION: [*range(1000, 1040), *range(1000, 1004)],
        "default/young-00001": [*range(1000, 1010)],
    }


def test_one_learns_and_the_other_takes_over(redis_server: RedisServer, start: Start) -> None:
    first = start()
    first.says("learning under fence 1")
    second = start()
    observe(redis_server, 20)
    first.says("refit")
    assert "learning under fence" not in second.log()

    first.kill()
    observe(redis_server, 5)
    second.says("learning under fence 2")
    all_acknowledged(redis_server)
    state = state_of(redis_server)
    assert state is not None
    assert len(state.window.size) == 25


def test_a_stop_leaves_the_lock_to_the_next(redis_server: RedisServer, start: Start) -> None:
    first = start()
    first.says("learning under fence 1")
    observe(redis_server, 3)
    all_acknowledged(redis_server)
    assert stop(first.process) == 0
    assert not redis_server.client.exists(LOCK)


@pytest.mark.parametrize("store", ["redis", "file"])
def test_one_that_slept_through_the_loss_of_its_lock_writes_nothing(
    redis_server: RedisServer, start: Start, tmp_path: Path, store: str
) -> None:
    options = ["--min-observations", "100000", "--window", "100000"]
    if store == "file":
        options += ["--store", (tmp_path / "store").as_uri()]
    first = start(*options)
    first.says("learning under fence 1")
    observe(redis_server, 30)
    first.signal(signal.SIGSTOP)
    second = start(*options)
    second.says("learning under fence 2")
    observe(redis_server, 20)
    all_acknowledged(redis_server)

    first.signal(signal.SIGCONT)
    first.says("no longer learns")
    observe(redis_server, 7)
    all_acknowledged(redis_server)
    assert stop(second.process) == 0
    if store == "redis":
        state = state_of(redis_server)
    else:
        paths = sorted((tmp_path / "store" / "functions" / FUNCTION).iterdir())
        loaded = unpacked("test", FUNCTION, paths[-1].read_bytes())
        state = loaded if isinstance(loaded, FunctionState) else None
    assert state is not None
    assert len(state.window.size) == 57


def test_answers_and_versions_are_the_same_after_a_restart(redis_server: RedisServer, start: Start) -> None:
    def not_due() -> bool | None:
        state = state_of(redis_server)
        return (state is not None and state.since_refit < state.due_after) or None

    first = start()
    observe(redis_server, 40)
    first.says("refit")
    all_acknowledged(redis_server)
    eventually("no refit is due any more", not_due)
    assert stop(first.process) == 0
    before = stored(redis_server)

    second = start()
    second.says("learning under fence 2")
    assert stop(second.process) == 0
    assert stored(redis_server) == before


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (b"{", "does not begin like a store entry"),
        (b'{"format":5,"body":{}}', "has format 5, want 1 to 4"),
        (None, "does not match its checksum"),
    ],
)
def test_rebuilds_what_it_must_not_read(
    redis_server: RedisServer, start: Start, entry: bytes | None, problem: str
) -> None:
    first = start()
    observe(redis_server, 30)
    observe(redis_server, 30, "default/other-00001")
    first.says("default/other-00001 refit")
    all_acknowledged(redis_server)
    assert stop(first.process) == 0
    before = stored(redis_server)
    if entry is None:
        entry = entry_of(redis_server)
        entry = entry[:-1] + bytes([entry[-1] ^ 1])
    redis_server.client.hset(FUNCTIONS, FUNCTION, entry)

    second = start()
    second.says(f"function={FUNCTION} rebuilt from 30 recorded observations")
    assert f"entry '{FUNCTION}' of {FUNCTIONS}" in second.log()
    assert problem in second.log()
    second.says(f"function={FUNCTION} refit")

    def rebuilt() -> FunctionState | None:
        loaded = unpacked("test", FUNCTION, entry_of(redis_server))
        return loaded if isinstance(loaded, FunctionState) else None

    state = eventually("it is saved again", rebuilt)
    assert state.window == before[FUNCTION].window
    assert state.learned_to == before[FUNCTION].learned_to
    assert stored(redis_server)["default/other-00001"] == before["default/other-00001"]


def test_a_lost_redis_gets_back_what_is_in_memory(redis_server: RedisServer, start: Start) -> None:
    learner = start()
    observe(redis_server, 20)
    learner.says("refit")
    all_acknowledged(redis_server)
    redis_server.stop()
    learner.says("is away")
    redis_server.start()
    learner.says("kept from memory")
    observe(redis_server, 5)

    def learned() -> FunctionState | None:
        state = state_of(redis_server)
        return state if state is not None and len(state.window.size) == 25 else None

    eventually("it goes on with what it had", learned)
    assert int(redis_server.client.get(FENCE)) > 1  # type: ignore[arg-type]


def test_a_stream_that_starts_over_in_the_past_is_learned(redis_server: RedisServer, start: Start) -> None:
    learner = start("--retire-days", "100000")
    observe(redis_server, 20)
    learner.says("refit")
    all_acknowledged(redis_server)
    redis_server.client.delete(STREAM)
    for i in range(1, 6):
        fields = {"v": "1", "data": json.dumps(observation())}
        redis_server.client.xadd(STREAM, fields, id=f"1700000000000-{i}")  # type: ignore[arg-type]

    def learned() -> FunctionState | None:
        state = state_of(redis_server)
        return state if state is not None and len(state.window.size) == 25 else None

    eventually("the new stream is learned", learned)
    assert "Redis lost its data, and the stream is read from the start" in learner.log()
