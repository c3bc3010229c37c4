"""Consumes the stream of observations as a group, in order and without a gap."""

import logging
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from opentelemetry.metrics import get_meter
from redis.exceptions import ResponseError

from libra_predictor.connection import Connection
from libra_predictor.lock import LockLostError
from libra_predictor.observations import STREAM, id_order

log = logging.getLogger(__name__)

GROUP: Final = "predictor"
CONSUMER: Final = "learner"  # one name for all learners, so that each takes up what the last one left
FENCE: Final = f"libra:predictor:{{{STREAM}}}:fence"  # in the stream's slot of a cluster

BATCH: Final = 500  # entries
_PAGE = 1000  # entries of history
_BLOCK_MILLISECONDS = 4000

# All of a learner's exchanges with the stream check its fence. Otherwise, a learner that slept through the
# loss of its lock could take entries, which its successor would then read out of order, or acknowledge
# entries that its successor has not saved.
_FENCED = """
local fence = tonumber(redis.call('GET', KEYS[2]) or '0')
if fence > tonumber(ARGV[1]) then return redis.error_reply('FENCED by ' .. fence) end
"""
_OPEN = (
    _FENCED
    + """
redis.call('SET', KEYS[2], ARGV[1])
local made = redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[2], '0', 'MKSTREAM')
local stream = redis.call('XINFO', 'STREAM', KEYS[1])
local newest
for i = 1, #stream, 2 do if stream[i] == 'last-generated-id' then newest = stream[i + 1] end end
return {made['err'] and 0 or 1, newest, redis.call('TIME')[1]}
"""
)
# Pending entries after the position go first: they are older than all that were not delivered yet.
_READ = (
    _FENCED
    + """
local read = {'XREADGROUP', 'GROUP', ARGV[2], ARGV[3], 'COUNT', ARGV[5], 'STREAMS', KEYS[1]}
read[9] = ARGV[4]
local reply = redis.call(unpack(read))
local entries, pending = reply and reply[1][2] or {}, 1
if #entries == 0 then
  read[9], pending = '>', 0
  reply = redis.call(unpack(read))
  entries = reply and reply[1][2] or {}
end
local function named(info)
  local values = {}
  for i = 1, #info, 2 do values[info[i]] = info[i + 1] end
  return values
end
local delivered = '0-0'
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  group = named(group)
  if group['name'] == ARGV[2] then delivered = group['last-delivered-id'] end
end
local stream = named(redis.call('XINFO', 'STREAM', KEYS[1]))
return {
  entries, pending, stream['entries-added'], stream['length'], stream['recorded-first-entry-id'],
  stream['last-generated-id'], delivered, redis.call('TIME')[1]
}
"""
)
_CHECK = _FENCED + "return 1"
_ACKNOWLEDGE = _FENCED + "return redis.call('XACK', KEYS[1], ARGV[2], unpack(ARGV, 3))"

_meter = get_meter("libra_predictor")
_behind = _meter.create_gauge(
    "libra.predictor.queue.behind",
    unit="s",
    description="Age of the newest observation read while others wait, else 0.",
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One stream entry. Its fields are None if it was trimmed before it was acknowledged."""

    id: str
    fields: dict[bytes, bytes] | None


@dataclass(frozen=True, slots=True)
class Opened:
    """The state of the stream when a learner begins with it."""

    group_is_new: bool
    newest: str  # ID appended last, "0-0" if there was none
    seconds: int  # Redis' clock, Unix


class Stream:
    """The learner's side of the stream. Raises UNREACHABLE, and LockLostError after a greater fence."""

    def __init__(self, connection: Connection, fence: int) -> None:
        client = connection.client
        self._client = client
        self._fence = fence
        self._position = "0-0"  # the ID read last
        self._delivered = "0-0"
        self._count: int | None = None  # of entries ever appended, up to the one delivered last; if known
        # All of the last read: Redis' clock, Unix; entries that were trimmed before they could be read, and
        # entries not delivered yet, as far as both are known.
        self.seconds = self.lost = self.waiting = 0
        self._open = client.register_script(_OPEN)
        self._read = client.register_script(_READ)
        self._check = client.register_script(_CHECK)
        self._acknowledge = client.register_script(_ACKNOWLEDGE)

    async def open(self) -> Opened:
        """Creates the group if it is missing, and starts over with what it has not acknowledged."""
        made, newest, seconds = await self._fenced(self._open, GROUP)
        self._position = "0-0"
        if made:
            self._count = None
        return Opened(bool(made), newest.decode(), int(seconds))

    async def read(self) -> list[Entry] | None:
        """The next entries in order, an empty list once all are read, or None if the group is gone."""
        try:
            reply = await self._fenced(self._read, GROUP, CONSUMER, self._position, BATCH)
        except ResponseError as error:
            if "NOGROUP" in str(error):
                return None
            raise
        raw, pending, added, length, first, newest, delivered, seconds = reply
        entries = [Entry(entry_id.decode(), _fields(flat)) for entry_id, flat in raw]
        if entries:
            self._position = entries[-1].id
        self._delivered, self.seconds = delivered.decode(), int(seconds)
        self._take_stock(entries, bool(pending), added, added - length, first.decode())
        behind = bool(entries) and id_order(self._delivered) < id_order(newest.decode())
        _behind.set(max(0, self.seconds - id_order(self._position)[0] // 1000) if behind else 0)
        return entries

    def _take_stock(
        self, entries: Sequence[Entry], pending: bool, added: int, trimmed: int, first: str
    ) -> None:
        """Counts what was lost and what waits, after a read that left first as the stream's oldest entry.

        Not by the group's lag: a Redis that has trimmed entries which the group had not read counts them in
        its lag for ever.
        """
        self.lost = 0
        if not entries:
            self._count = added
        elif not pending and entries[0].id == first:
            if self._count is not None:
                self.lost = max(0, trimmed - self._count)
            self._count = trimmed + len(entries)
        elif not pending and self._count is not None:
            self._count += len(entries)
        self.waiting = 0 if self._count is None else max(0, added - self._count)

    async def wait(self) -> None:
        """Returns when there may be more to read, or after some seconds."""
        await self._client.xread({STREAM: self._delivered}, count=1, block=_BLOCK_MILLISECONDS)

    def end(self) -> None:
        """Stops to say how far behind it is."""
        _behind.set(0)

    async def check(self) -> None:
        """Raises LockLostError if another learner has opened the stream since."""
        await self._fenced(self._check)

    async def acknowledge(self, ids: Sequence[str]) -> None:
        for start in range(0, len(ids), _PAGE):
            await self._fenced(self._acknowledge, GROUP, *ids[start : start + _PAGE])

    async def history(self) -> AsyncIterator[Entry]:
        """All that the stream still has, acknowledged or not, from the oldest on."""
        start = "-"
        while True:
            page = cast(
                list[tuple[bytes, dict[bytes, bytes]]],
                await self._client.xrange(STREAM, min=start, count=_PAGE),
            )
            for entry_id, fields in page:
                yield Entry(entry_id.decode(), fields)
            if len(page) < _PAGE:
                return
            start = f"({page[-1][0].decode()}"

    async def _fenced(self, script: Any, *arguments: str | int) -> Any:
        try:
            return await cast(Awaitable[Any], script(keys=[STREAM, FENCE], args=[self._fence, *arguments]))
        except ResponseError as error:
            if "FENCED" in str(error):
                raise LockLostError(f"the stream is read under a fence above {self._fence}") from error
            raise


def _fields(flat: list[bytes] | None) -> dict[bytes, bytes] | None:
    return None if flat is None else dict(zip(flat[::2], flat[1::2], strict=True))
