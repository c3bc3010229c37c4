"""Tasks that end together, even if one swallows its cancellation."""

import asyncio

import pytest

from libra_predictor.tasks import first_of


async def for_ever() -> None:
    await asyncio.Event().wait()


async def deaf_once(ended: list[str]) -> None:
    try:
        await for_ever()
    except asyncio.CancelledError:
        ended.append("once")
    try:
        await for_ever()
    finally:
        ended.append("twice")


async def fails() -> None:
    raise ValueError("as it should")


def test_ends_with_the_first() -> None:
    async def run() -> None:
        await first_of(for_ever(), asyncio.sleep(0), for_ever())
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_raises_what_the_first_raised() -> None:
    async def run() -> None:
        with pytest.raises(ValueError, match="as it should"):
            await first_of(for_ever(), fails())
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())


def test_cancels_again_what_has_not_heard() -> None:
    async def run() -> None:
        ended: list[str] = []
        await first_of(deaf_once(ended), asyncio.sleep(0))
        assert ended == ["once", "twice"]

    asyncio.run(run())


def test_is_cancelled_with_all_within() -> None:
    async def run() -> None:
        ended: list[str] = []
        outer = asyncio.create_task(first_of(first_of(deaf_once(ended), for_ever()), for_ever()))
        for _ in range(5):
            await asyncio.sleep(0)
        outer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await outer
        assert ended == ["once", "twice"]
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(run())
