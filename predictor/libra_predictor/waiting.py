"""uvicorn's server without its polling."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

import uvicorn

_TICK_SECONDS = 1.0


class WaitingServer(uvicorn.Server):
    """Waits to be told to stop. uvicorn's checks ten times a second, half of the cost of an idle server."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._tell: Callable[[], object] = lambda: None

    async def main_loop(self) -> None:
        told, loop = asyncio.Event(), asyncio.get_running_loop()
        self._tell = lambda: loop.call_soon_threadsafe(told.set)
        # Each tick updates the Date header of the answers.
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_SECONDS):
                    await told.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._tell()
