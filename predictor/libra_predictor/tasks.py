"""Tasks that run together and end together."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

_CANCEL_AGAIN_SECONDS = 0.5


async def first_of(*work: Coroutine[Any, Any, Any]) -> None:
    """Returns when the first of work does, or raises what it raised. The others have ended by then."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _end(tasks)
    for task in done:
        task.result()


async def _end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels until all end: wait_for of Python 3.11, and so redis-py, may swallow a cancellation."""
    cancelled: asyncio.CancelledError | None = None
    while running := [task for task in tasks if not task.done()]:
        for task in running:
            task.cancel()
        try:
            await asyncio.wait(running, timeout=_CANCEL_AGAIN_SECONDS)
        except asyncio.CancelledError as error:
            cancelled = error
    for task in tasks:
        if not task.cancelled():
            task.exception()  # so that asyncio does not log it as never retrieved
    if cancelled is not None:
        raise cancelled
