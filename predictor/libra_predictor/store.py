"""Stores for what was learned: one entry per function, in Redis or in an object store."""

import asyncio
import hashlib
import logging
import os
import re
import sys
import zlib
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, NoReturn, Protocol, TypeVar, cast

import obstore
from obstore.exceptions import BaseError
from opentelemetry.metrics import get_meter
from pydantic import ValidationError

from libra_predictor.connection import UNREACHABLE, Connection
from libra_predictor.function import FunctionState
from libra_predictor.lock import FENCE, HISTORY, LOCK, Hold, LockLostError

FUNCTIONS: Final = "libra:predictor:{state}:functions"
VERSIONS: Final = "libra:predictor:{state}:versions"
COMPLETE: Final = "libra:predictor:{state}:complete"  # the fence under which all functions were saved
FORMAT: Final = 4
# Format 2 added the CPU time and format 3 the largest size. Format 4 compresses the state.
_READ = (1, 2, 3, FORMAT)

# Releases up to format 3 leave a newer entry alone if it begins like this, and drop any other.
_FORMAT = re.compile(rb'\{"format":(\d{1,9}),')
_PLAIN = re.compile(rb'\{"format":[123],"sha256":"([0-9a-f]{64})","state":(.*)\}', re.DOTALL)
_COMPRESSED = re.compile(rb'\{"format":4,"sha256":"([0-9a-f]{64})"\}\n(.*)', re.DOTALL)
_OBJECT = re.compile(r"functions/([^/]+/[^/]+)/(\d{20})\.json")
_PATIENCE_SECONDS = 30.0  # with one request to an object store
_TOGETHER = 32  # functions in one exchange with a store, and unpacked at a time

_T = TypeVar("_T")

_meter = get_meter("libra_predictor")
_writes = _meter.create_counter(
    "libra.predictor.store.writes", unit="{entry}", description="Functions saved or dropped, by `result`."
)
_refusals = _meter.create_counter(
    "libra.predictor.store.refusals", unit="{entry}", description="Store entries refused, by `reason`."
)


class StoreUnreachableError(Exception):
    """The store did not answer, or not as a store should."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An entry that must not be used; problem names its key and what is accepted."""

    problem: str
    newer: bool = False  # of a format that is not known yet


@dataclass(frozen=True, slots=True)
class Index:
    """The functions that a store has. A function's token changes whenever its entry does."""

    fence: int  # the greatest known, or 0
    tokens: Mapping[str, str]
    complete: bool  # whether what is not here has been dropped; a store that was lost may be refilled still
    history: str = ""  # names all that the store has had since it was empty, if that is known


class Store(Protocol):
    """Raises StoreUnreachableError; writes also raise LockLostError after another learner took over.

    Load and save many functions in parts(): unpacked, a function takes many times the memory.

    by_fence says that each learner writes entries of its own. An earlier learner can still change what is
    read of a function until the new one has written its own entry.
    """

    by_fence: bool

    async def index(self) -> Index: ...

    async def load(self, functions: Collection[str]) -> dict[str, FunctionState | Refused]:
        """The entries of those functions that have one."""
        ...

    async def save(self, states: Sequence[FunctionState], hold: Hold) -> None: ...

    async def drop(self, functions: Collection[str], hold: Hold) -> None: ...

    async def complete(self, hold: Hold) -> None:
        """Notes that the learner has saved all functions that it began with."""
        ...


def packed(state: FunctionState) -> bytes:
    """The entry of a state: a line of JSON with a checksum, and the compressed state that it is of."""
    body = zlib.compress(state.model_dump_json().encode())
    return b'{"format":%d,"sha256":"%s"}\n%s' % (FORMAT, _digest(body), body)


def unpacked(key: str, function: str, entry: bytes) -> FunctionState | Refused:
    """Reads an entry, or says why not."""
    begin = _FORMAT.match(entry)
    if begin is None:
        return _refused("corrupt", f"entry {key} does not begin like a store entry")
    entry_format = int(begin[1])
    if entry_format not in _READ:
        _refusals.add(1, {"reason": "format"})
        problem = f"entry {key} has format {entry_format}, want {_READ[0]} to {FORMAT}"
        return Refused(problem, newer=entry_format > FORMAT)
    whole = (_COMPRESSED if entry_format == FORMAT else _PLAIN).fullmatch(entry)
    if whole is None or _digest(whole[2]) != whole[1]:
        return _refused("corrupt", f"entry {key} does not match its checksum")
    try:
        body = zlib.decompress(whole[2]) if entry_format == FORMAT else whole[2]
        state = FunctionState.model_validate_json(body)
    except zlib.error as error:
        return _refused("malformed", f"entry {key}: {error}")
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return _refused("malformed", f"entry {key}: state.{where}: {first['msg']}")
    if state.name != function:
        return _refused("corrupt", f"entry {key} holds another function, {state.name!r}")
    return state


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


def _refused(reason: str, problem: str) -> Refused:
    _refusals.add(1, {"reason": reason})
    return Refused(problem)


def open_store(store: str, connection: Connection) -> Store:
    """Opens "redis", or the object store at a URI. Raises ValueError for any other store."""
    if store == "redis":
        return RedisStore(connection)
    created = {"mkdir": True} if store.startswith("file:") else {}
    try:
        return ObjectStore(store, obstore.store.from_url(store, **cast(Any, created)))
    except BaseError as error:
        raise ValueError(
            f"store {store!r}: {str(error).partition(chr(10))[0]}; want redis or a URI that begins"
            " with file://, s3://, gs:// or az://"
        ) from error


_INDEX = """
local fence = redis.call('GET', KEYS[1])
local complete = fence and fence == redis.call('GET', KEYS[3]) and 1 or 0
return {fence, redis.call('HGETALL', KEYS[2]), complete, redis.call('GET', KEYS[4])}
"""
_SAVE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
for i = 2, #ARGV, 3 do
  redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1])
  redis.call('HSET', KEYS[3], ARGV[i], ARGV[i + 2])
end
return 1
"""
_DROP = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('HDEL', KEYS[2], unpack(ARGV, 2))
redis.call('HDEL', KEYS[3], unpack(ARGV, 2))
return 1
"""


_COMPLETE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[2], ARGV[2])
return 1
"""


class RedisStore:
    """Entries in a hash; a write goes through only while its writer holds the lock."""

    by_fence = False

    def __init__(self, connection: Connection) -> None:
        self._client = connection.client
        self._index = self._client.register_script(_INDEX)
        self._save = self._client.register_script(_SAVE)
        self._drop = self._client.register_script(_DROP)
        self._complete = self._client.register_script(_COMPLETE)

    async def index(self) -> Index:
        try:
            reply = self._index(keys=[FENCE, VERSIONS, COMPLETE, HISTORY])
            fence, tokens, complete, history = await cast(
                Awaitable[tuple[bytes | None, list[bytes], int, bytes | None]], reply
            )
        except UNREACHABLE as error:
            raise StoreUnreachableError(f"read the index in Redis: {error}") from error
        names = [text.decode() for text in tokens]
        of_names = dict(zip(names[::2], names[1::2], strict=True))
        return Index(int(fence or 0), of_names, complete == 1, (history or b"").decode())

    async def load(self, functions: Collection[str]) -> dict[str, FunctionState | Refused]:
        loaded: dict[str, FunctionState | Refused] = {}
        names = list(functions)
        try:
            entries = await cast(Awaitable[list[bytes | None]], self._client.hmget(FUNCTIONS, names))
        except UNREACHABLE as error:
            raise StoreUnreachableError(f"read entries in Redis: {error}") from error
        for name, entry in zip(names, entries, strict=True):
            if entry is not None:
                loaded[name] = unpacked(f"{name!r} of {FUNCTIONS}", name, entry)
                await asyncio.sleep(0)
        return loaded

    async def save(self, states: Sequence[FunctionState], hold: Hold) -> None:
        arguments: list[str | bytes] = []
        for state, entry in await _all_packed(states):
            published = state.published
            token = f"{published.version}:{published.stage}:{published.observations}"
            arguments += (state.name, entry, token)
        await self._write(self._save, hold, arguments, len(states))

    async def drop(self, functions: Collection[str], hold: Hold) -> None:
        for some in parts(functions):
            await self._write(self._drop, hold, some, len(some))

    async def complete(self, hold: Hold) -> None:
        try:
            written = await cast(
                Awaitable[int], self._complete(keys=[LOCK, COMPLETE], args=[hold.token, hold.fence])
            )
        except UNREACHABLE as error:
            raise StoreUnreachableError(f"write to Redis: {error}") from error
        if not written:
            raise LockLostError(f"Redis refused a write under fence {hold.fence}")

    async def _write(self, script: Any, hold: Hold, arguments: Sequence[str | bytes], count: int) -> None:
        try:
            written = await script(keys=[LOCK, FUNCTIONS, VERSIONS], args=[hold.token, *arguments])
        except UNREACHABLE as error:
            _writes.add(count, {"result": "failed"})
            raise StoreUnreachableError(f"write to Redis: {error}") from error
        if not written:
            _writes.add(count, {"result": "fenced"})
            raise LockLostError(f"Redis refused a write under fence {hold.fence}")
        _writes.add(count, {"result": "written"})


class ObjectStore:
    """An object per function and fence; readers take the greatest fence, so a stale writer does no harm.

    The object store's client retries by itself, within its own limits.
    """

    by_fence = True

    def __init__(self, uri: str, store: obstore.store.ObjectStore) -> None:
        self._uri = uri
        self._store = store
        self._fences: dict[str, list[int]] = {}  # those seen of each function, ascending
        self._writing: dict[str, asyncio.Future[object]] = {}  # by path

    async def index(self) -> Index:
        fences, tokens = await self._list("functions")
        self._fences = fences
        # A bucket without objects may have been emptied.
        return Index(max((known[-1] for known in fences.values()), default=0), tokens, bool(fences))

    async def load(self, functions: Collection[str]) -> dict[str, FunctionState | Refused]:
        loaded: dict[str, FunctionState | Refused] = {}
        entries = await _all(self._get(name) for name in functions)
        for name, (path, entry) in zip(functions, entries, strict=True):
            if entry is not None:
                loaded[name] = unpacked(f"{path} of {self._uri}", name, entry)
                await asyncio.sleep(0)
        return loaded

    async def save(self, states: Sequence[FunctionState], hold: Hold) -> None:
        entries = await _all_packed(states)
        await _all(self._put(state.name, entry, hold) for state, entry in entries)

    async def drop(self, functions: Collection[str], hold: Hold) -> None:
        for name in functions:
            self._refuse_stale(name, hold)
            await self._delete(name, {*self._fences.pop(name, ()), hold.fence})
            _writes.add(1, {"result": "written"})

    async def complete(self, hold: Hold) -> None:
        """Does nothing: the store outlasts Redis, and keeps what earlier learners saved."""

    def _refuse_stale(self, name: str, hold: Hold) -> None:
        known = self._fences.get(name, ())
        if known and known[-1] > hold.fence:
            _writes.add(1, {"result": "fenced"})
            raise LockLostError(
                f"{self._uri} has function {name} under fence {known[-1]}, above {hold.fence}"
            )

    async def _put(self, name: str, entry: bytes, hold: Hold) -> None:
        self._refuse_stale(name, hold)
        try:
            await self._write(_path(name, hold.fence), entry)
        except StoreUnreachableError:
            _writes.add(1, {"result": "failed"})
            raise
        _writes.add(1, {"result": "written"})
        older = [fence for fence in self._fences.get(name, ()) if fence < hold.fence]
        await self._delete(name, older)
        self._fences[name] = [hold.fence]

    async def _write(self, path: str, entry: bytes) -> None:
        """Writes an entry once no earlier write of it is under way: one that is given up may still land."""
        async with _asking(f"write {path} to {self._uri}"):
            if (before := self._writing.get(path)) is not None:
                await asyncio.wait([before])
            writing: asyncio.Future[object] = asyncio.ensure_future(
                obstore.put_async(self._store, path, entry)
            )
            self._writing[path] = writing
            writing.add_done_callback(lambda over: self._written(path, over))
            await asyncio.shield(writing)

    def _written(self, path: str, over: asyncio.Future[object]) -> None:
        del self._writing[path]
        if not over.cancelled():
            over.exception()  # nobody else may ask for it

    async def _delete(self, name: str, fences: Collection[int]) -> None:
        for fence in fences:
            async with _asking(f"delete {_path(name, fence)} of {self._uri}"):
                with suppress(FileNotFoundError):
                    await obstore.delete_async(self._store, _path(name, fence))

    async def _get(self, name: str) -> tuple[str, bytes | None]:
        """The entry at the greatest fence known or, failing that, at the greatest in the store."""
        known = self._fences.get(name)
        if known:
            entry = await self._read(_path(name, known[-1]))
            if entry is not None:
                return _path(name, known[-1]), entry
        fences, _ = await self._list(f"functions/{name}")
        if name not in fences:
            self._fences.pop(name, None)
            return "", None
        self._fences[name] = fences[name]
        path = _path(name, fences[name][-1])
        return path, await self._read(path)

    async def _read(self, path: str) -> bytes | None:
        async with _asking(f"read {path} of {self._uri}"):
            try:
                return bytes(await (await obstore.get_async(self._store, path)).bytes_async())
            except FileNotFoundError:
                return None

    async def _list(self, prefix: str) -> tuple[dict[str, list[int]], dict[str, str]]:
        """For each function: the fences that it is stored under, ascending, and the token of its entry."""
        fences: dict[str, list[int]] = {}
        tokens: dict[int, dict[str, str]] = {}
        pages = aiter(
            cast(AsyncIterable[list[dict[str, Any]]], obstore.list(self._store, prefix, chunk_size=1000))
        )
        while True:
            async with _asking(f"list {prefix} of {self._uri}"):
                page = await anext(pages, None)
            if page is None:
                break
            for found in page:
                match = _OBJECT.fullmatch(found["path"])
                if match is None:
                    continue
                name, fence = match[1], int(match[2])
                fences.setdefault(name, []).append(fence)
                mark = found["e_tag"] or f"{found['last_modified']}:{found['size']}"
                tokens.setdefault(fence, {})[name] = f"{fence}:{mark}"
        for known in fences.values():
            known.sort()
        return fences, {name: tokens[known[-1]][name] for name, known in fences.items()}


@asynccontextmanager
async def _asking(what: str) -> AsyncIterator[None]:
    """Bounds a request to an object store: one that hangs is away like one that refuses.

    The error has no cause, because an OSError would be taken for one of Redis.
    """
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            yield
    except TimeoutError:
        raise StoreUnreachableError(f"{what}: no answer within {_PATIENCE_SECONDS:g} s") from None
    except (BaseError, OSError) as error:
        raise StoreUnreachableError(f"{what}: {error}") from None


async def _all(requests: Iterable[Awaitable[_T]]) -> list[_T]:
    """Waits for all requests, also when one fails, so that none is under way when they are retried."""
    answers = await asyncio.gather(*requests, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return cast(list[_T], answers)


async def _all_packed(states: Iterable[FunctionState]) -> list[tuple[FunctionState, bytes]]:
    """Packs states, and lets requests be answered after each."""
    entries = []
    for state in states:
        entries.append((state, packed(state)))
        await asyncio.sleep(0)
    return entries


def end_process() -> NoReturn:
    """Flushes the logs, and ends the process without finalizing the interpreter.

    obstore's threads hand results to Python even for cancelled calls, and a thread that does so while the
    interpreter is being finalized aborts the process
    (https://github.com/PyO3/pyo3-async-runtimes/issues/40).
    """
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _path(function: str, fence: int) -> str:
    return f"functions/{function}/{fence:020d}.json"


def parts(items: Collection[_T]) -> Iterator[list[_T]]:
    """Splits items into lists to load or save together."""
    rest = iter(items)
    while some := list(islice(rest, _TOGETHER)):
        yield some
