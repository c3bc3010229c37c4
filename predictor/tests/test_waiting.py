import asyncio
import signal

import pytest
import uvicorn
from conftest import WAIT_SECONDS

from libra_predictor import waiting
from libra_predictor.waiting import WaitingServer


class Counting(WaitingServer):
    """Counts its ticks."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ticks = 0
        self.ticked = asyncio.Event()

    async def on_tick(self, counter: int) -> bool:
        self.ticks += 1
        self.ticked.set()
        return await super().on_tick(counter)


async def nothing(scope: object, receive: object, send: object) -> None:
    raise AssertionError("it is not asked anything")


def server() -> Counting:
    config = uvicorn.Config(nothing, log_config=None)
    config.load()
    return Counting(config)


def test_it_ends_when_it_is_told_and_not_at_the_next_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_TICK_SECONDS", 3600.0)

    async def scene() -> None:
        waits = server()
        running = asyncio.create_task(waits.main_loop())
        async with asyncio.timeout(WAIT_SECONDS):
            await waits.ticked.wait()
        assert (running.done(), waits.ticks) == (False, 1)
        waits.handle_exit(signal.SIGTERM, None)
        async with asyncio.timeout(WAIT_SECONDS):
            await running

    asyncio.run(scene())


def test_what_it_is_told_before_it_runs_is_heard() -> None:
    async def scene() -> None:
        waits = server()
        waits.handle_exit(signal.SIGTERM, None)
        async with asyncio.timeout(WAIT_SECONDS):
            await waits.main_loop()

    asyncio.run(scene())


def test_it_ticks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_TICK_SECONDS", 0.01)

    async def scene() -> None:
        waits = server()
        running = asyncio.create_task(waits.main_loop())
        async with asyncio.timeout(WAIT_SECONDS):
            while waits.ticks < 3:  # noqa: ASYNC110  # what is waited for has no event
                await asyncio.sleep(0.01)
        assert any(name == b"date" for name, _ in waits.server_state.default_headers)
        waits.should_exit = True
        async with asyncio.timeout(WAIT_SECONDS):
            await running

    asyncio.run(scene())
