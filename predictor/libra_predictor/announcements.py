"""The learner's announcements, over Redis, that a function's answers have changed."""

import logging
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from libra_predictor.connection import Connection
from libra_predictor.published import Published

log = logging.getLogger(__name__)

CHANNEL: Final = "libra:predictor:announcements"
_LISTEN_SECONDS = 4.0


class Announced(BaseModel):
    """The new version of a function, empty when the function was dropped."""

    model_config = ConfigDict(frozen=True)

    function: str
    version: str = Field(pattern=r"^\d*$")
    offset: tuple[int, int]  # millicores and bytes
    largest: tuple[int, int]  # likewise


class Announcement(BaseModel):
    """One message on the channel."""

    model_config = ConfigDict(frozen=True)

    v: Literal[1] = 1
    functions: tuple[Announced, ...]


def announcement(changed: Sequence[Published], dropped: Collection[str] = ()) -> Announcement:
    return Announcement(
        functions=(
            *(
                Announced(function=p.function, version=str(p.version), offset=p.offset, largest=p.largest)
                for p in changed
            ),
            *(Announced(function=name, version="", offset=(0, 0), largest=(0, 0)) for name in dropped),
        )
    )


async def announce(connection: Connection, message: Announcement) -> None:
    """Publishes message. Raises UNREACHABLE.

    No replica relies on hearing it. An activator that has a table asks for a newer one only now and then.
    """
    await connection.client.publish(CHANNEL, message.model_dump_json())


async def announcements(connection: Connection) -> AsyncGenerator[Announcement | None]:
    """Yields announcements; None once it listens, and after every few seconds without one.

    Raises UNREACHABLE when the connection is lost. Announcements until there is a new one are lost, too.
    """
    async with aclosing(connection.client.pubsub()) as subscription:
        await subscription.subscribe(CHANNEL)
        yield None
        while True:
            message = cast(
                dict[str, Any] | None,
                await subscription.get_message(ignore_subscribe_messages=True, timeout=_LISTEN_SECONDS),
            )
            yield None if message is None else _read(message["data"])


def _read(data: bytes) -> Announcement | None:
    try:
        return Announcement.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        log.warning("ignored an announcement on %s: %s: %s", CHANNEL, where, first["msg"])
        return None
