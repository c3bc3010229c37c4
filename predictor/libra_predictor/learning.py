"""The work of a replica while it holds the lock: consume, learn, refit, save and announce."""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from opentelemetry.metrics import get_meter

from libra_predictor.announcements import announce, announcement
from libra_predictor.connection import UNREACHABLE, BackOff, Connection
from libra_predictor.function import Fitted, Function, FunctionState, Haste
from libra_predictor.lock import Hold, LockLostError
from libra_predictor.observations import STREAM, Observed, Useless, id_order, parse
from libra_predictor.published import Answers, Published, Stage
from libra_predictor.refits import Refits
from libra_predictor.replica import Replica
from libra_predictor.scores import Scores
from libra_predictor.settings import Settings
from libra_predictor.store import Refused, Store, StoreUnreachableError, parts
from libra_predictor.stream import BATCH, Entry, Opened, Stream
from libra_predictor.tasks import first_of

log = logging.getLogger(__name__)

MOST_AWAKE: Final = 300  # functions kept unpacked, ready to observe and refit, at some 190 KiB each
SAVE_SECONDS: Final = 0.1  # between two saves, and so between two announcements
_READ_SECONDS = 0.25  # between two reads while there is something to read: a read costs more than its entries
_MOST_UNSAVED = 5000  # entries read and not acknowledged
_ANEW_SECONDS = 60.0  # before the store counts as complete if this learner began with nothing
_AFTER_FAILURE_SECONDS = 30.0  # before a function whose refit failed is refitted again
_RETIRE_SECONDS = 60.0  # between two looks for functions to retire
_MILLISECONDS_A_DAY = 86_400_000

_meter = get_meter("libra_predictor")
_read = _meter.create_counter(
    "libra.predictor.observations.read", unit="{entry}", description="Observations read from the stream."
)
_skipped = _meter.create_counter(
    "libra.predictor.observations.skipped",
    unit="{entry}",
    description="Observations not learned from, by `reason`. Lost ones left the stream unread.",
)
_refitted = _meter.create_counter(
    "libra.predictor.refits", unit="{refit}", description="Refits of functions, by `result`."
)
_refit_seconds = _meter.create_histogram(
    "libra.predictor.refit.duration",
    unit="s",
    description="Time to refit one function.",
    explicit_bucket_boundaries_advisory=[0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2],
)


class Learning:
    """The learner, from taking the lock to losing it.

    functions are those that it learns, the one observed last at the end. loaded is set once all of them are
    loaded, and saved is true once the store has had all of them.
    """

    def __init__(
        self, settings: Settings, connection: Connection, store: Store, hold: Hold, replica: Replica
    ) -> None:
        self.functions: dict[str, Function] = {}
        self.loaded = asyncio.Event()
        self.saved = False
        # A replica that knows more has taken over by then.
        self._complete_from = time.monotonic() + (_ANEW_SECONDS if hold.anew else 0)
        # Set once everything recorded before the start is learned, and the answers of pressing refits served.
        self.caught_up = asyncio.Event()
        self._settings = settings
        self._connection = connection
        self._store = store
        self._hold = hold
        self._replica = replica
        self._stream = Stream(connection, hold.fence)
        self._newest_at_start = "0-0"
        self._consumed = False
        self._awaited: set[str] = set()  # functions to refit before it has caught up
        self._to_skip: dict[str, int] = {}  # how many observations of a function, while far behind
        self._not_at_rest: dict[str, Function] = {}  # the one used last at the end
        self._unacknowledged: dict[str, None] = {}
        self._changed: dict[str, None] = {}
        self._dropped: dict[str, None] = {}
        self._unsaved = asyncio.Event()
        self._unsaved_since = -math.inf  # on the monotonic clock
        self._to_save = asyncio.Event()  # to save at once, because others should know
        self._saved = asyncio.Event()
        self._announced: dict[str, int] = {}
        self._refits = Refits(time.monotonic())
        self._refit_wanted = asyncio.Event()
        self.scores = Scores()

    async def run(self, before: dict[str, Function]) -> None:
        """Loads the store, then learns for ever. Raises LockLostError.

        before are the functions of an earlier hold of this replica. Those that the store still has as they
        are need not be held twice, and a lost Redis gets back the others. run empties it once it no longer
        needs them.
        """
        back_off = BackOff()
        while True:
            try:
                await self._begin(before)
                break
            except (StoreUnreachableError, *UNREACHABLE) as error:
                self._failed("could not load the learned functions, retrying", error)
            await asyncio.sleep(back_off.next())
        before.clear()
        await first_of(self._consume(), self._save(), self._refit_all(), self._retire_all())

    def end(self) -> None:
        """Takes back what the metrics say of this learner, once run is over."""
        self.scores.clear()
        self._stream.end()

    def _failed(self, what: str, error: Exception) -> None:
        cause = error.__cause__ if isinstance(error, StoreUnreachableError) else error
        if isinstance(cause, UNREACHABLE):
            self._connection.failed(cause)
        if not isinstance(error, UNREACHABLE):
            log.warning("%s: %s", what, error)

    async def _begin(self, before: Mapping[str, Function]) -> None:
        # First, so that an earlier learner can no longer acknowledge what is not in the store yet.
        opened = await self._stream.open()
        index = await self._store.index()
        if index.fence > self._hold.fence:
            raise LockLostError(f"the store was written under fence {index.fence}, above {self._hold.fence}")
        functions: dict[str, Function] = {}
        refused: dict[str, Refused] = {}
        for some in parts(index.tokens):
            for name, state in (await self._store.load(some)).items():
                if isinstance(state, Refused):
                    log.error("function=%s is learned anew from the stream: %s", name, state.problem)
                    refused[name] = state
                else:
                    functions[name] = self._restored(state, before.get(name))
                    self._announced[name] = state.published.version
                    await asyncio.sleep(0)
        self.functions = functions
        if self._hold.redis_was_lost:
            self._keep(before)
        await self._rebuild(refused)
        left = set()
        for name in refused.keys() - self.functions.keys():
            if refused[name].newer:
                left.add(name)
                log.warning("function=%s stays in the store as a newer predictor wrote it", name)
            else:
                log.warning("function=%s dropped: no recorded observations of it are left", name)
                self._dropped[name] = None
        self.functions = dict(sorted(self.functions.items(), key=lambda item: _last_seen(item[1])))
        while len(self.functions) > self._settings.max_functions:
            self._drop(next(iter(self.functions)))
        for name in self._replica.functions.keys() - self.functions.keys() - left:
            self._replica.forget(name)
        for name, function in self.functions.items():
            self._announced.setdefault(name, function.published.version)
            if function.published.version != self._announced[name]:
                self._mark(name)
            if function.published.stage is Stage.PROFILING and function.refit_due():
                # The settings changed: its old answers must no longer be served.
                await self._refit(function, Haste.NOW)
            self._replica.publish(function.published)
            self._want_refit(function)
            if self._store.by_fence:
                self._mark(name)
        self._opened(opened)
        self._newest_at_start = opened.newest
        self.loaded.set()
        self._save_all_now()
        log.info(
            "learning under fence %d: %d functions known, %d store entries refused",
            self._hold.fence,
            len(self.functions),
            len(refused),
        )

    def _restored(self, state: FunctionState, before: Function | None) -> Function:
        if before is None or (before.learned_to, before.published) != (state.learned_to, state.published):
            return Function.restore(state, self._settings)
        before.rest()
        return before

    def _keep(self, before: Mapping[str, Function]) -> None:
        """Restores from this replica's memory what a lost Redis no longer has."""
        kept = 0
        for name, function in before.items():
            stored, served = self.functions.get(name), self._replica.functions.get(name)
            if stored is not None and not stored.published.is_anew(function.published):
                if id_order(stored.learned_to) >= id_order(function.learned_to):
                    continue
            elif (
                served is not None
                and served.version > function.published.version
                and not served.is_anew(function.published)
            ):
                continue  # another replica has learned more since
            self.functions[name] = function
            self._awake(function)
            self._mark(name)
            kept += 1
        for name, published in self._replica.functions.items():
            stored = self.functions.get(name)
            if stored is None or stored.published.is_anew(published):
                self.functions[name] = _adopted(published, self._settings)
                self._announced[name] = published.version
                self._mark(name)
                kept += 1
        log.warning("Redis lost its data: %d functions kept from memory", kept)

    async def _rebuild(self, refused: Collection[str]) -> None:
        if not refused:
            return
        learned = dict.fromkeys(refused, 0)
        async for entry in self._stream.history():
            observed = parse(entry.fields or {})
            if isinstance(observed, Observed) and observed.function in learned:
                learned[observed.function] += 1
                self._learn_from(entry, observed)
            await asyncio.sleep(0)
        for name, count in learned.items():
            log.warning("function=%s rebuilt from %d recorded observations", name, count)

    def _opened(self, opened: Opened) -> None:
        """Resets the functions' marks if Redis started over and so gives new entries lower IDs."""
        newest = max((id_order(f.learned_to) for f in self.functions.values()), default=(0, 0))
        clock_went_back = 1000 * opened.seconds + 1000 < newest[0]
        if id_order(opened.newest) >= newest or not (opened.group_is_new or clock_went_back):
            return
        log.warning(
            "%s ends at entry %s, before the learned entry %d-%d: Redis lost its data, and the stream is read"
            " from the start",
            STREAM,
            opened.newest,
            *newest,
        )
        self._unacknowledged.clear()
        for function in self.functions.values():
            function.learned_to = "0-0"
            self._mark(function.name)

    async def _consume(self) -> None:
        back_off = BackOff()
        lost = False
        while True:
            try:
                if lost:
                    self._opened(await self._stream.open())
                    lost = False
                entries = await self._stream.read()
                if entries is None:
                    lost = True
                    continue
                self._connection.worked()
                back_off.reset()
                if entries:
                    _read.add(len(entries))
                if self._stream.lost:
                    _skipped.add(self._stream.lost, {"reason": "lost"})
                self._note_trimmed(entries)
                for entry in entries:
                    self._take(entry)
                    await asyncio.sleep(0)
                newest = entries[-1].id if entries else self._newest_at_start
                if not self._consumed and id_order(newest) >= id_order(self._newest_at_start):
                    self._consumed = True
                    # Not the others: they have answers, and with many functions most are always due.
                    self._awaited = set(self._refits.pressing(time.monotonic()))
                    self._refit_wanted.set()
                if not entries:
                    await self._stream.wait()
                elif len(entries) < BATCH:
                    await asyncio.sleep(_READ_SECONDS)
                while len(self._unacknowledged) >= _MOST_UNSAVED:
                    self._save_all_now()
                    self._saved.clear()
                    await self._saved.wait()
            except UNREACHABLE as error:
                self._connection.failed(error)
                lost = True
                await asyncio.sleep(back_off.next())

    def _note_trimmed(self, entries: Iterable[Entry]) -> None:
        # After a reconnect, those that were learned and not yet acknowledged come again.
        trimmed = [e.id for e in entries if e.fields is None and e.id not in self._unacknowledged]
        if trimmed:
            _skipped.add(len(trimmed), {"reason": "trimmed"})
            log.warning(
                "%d entries of %s, from %s on, were trimmed before they were learned",
                len(trimmed),
                STREAM,
                trimmed[0],
            )

    def _take(self, entry: Entry) -> None:
        self._unacknowledged[entry.id] = None
        self._save_in_time()
        if entry.fields is None:
            return
        observed = parse(entry.fields)
        if isinstance(observed, Useless):
            _skipped.add(1, {"reason": observed.reason})
            if observed.problem:
                log.warning("entry %s of %s skipped: %s", entry.id, STREAM, observed.problem)
            return
        if self._has_enough(observed.function):
            _skipped.add(1, {"reason": "enough"})
            return
        self._learn_from(entry, observed)

    def _has_enough(self, name: str) -> bool:
        """Whether to skip an observation, so that rare and new functions are learned while far behind.

        Which ones are skipped must not depend on what they say: the offset counts on calls as they come.
        """
        rounds = self._stream.waiting // BATCH
        if rounds == 0:
            self._to_skip.clear()
            return False
        function = self.functions.get(name)
        if function is None or function.published.stage is not Stage.MODELLED:
            return False
        if function.haste() is not Haste.WHENEVER:
            return False
        left = self._to_skip.get(name, 0)
        self._to_skip[name] = left - 1 if left else rounds
        return left > 0

    def _learn_from(self, entry: Entry, observed: Observed) -> None:
        try:
            function = self._function(observed)
            self._awake(function)
            self._observe(function, entry.id, observed)
        except Exception:
            # One entry must not keep all others from being learned.
            _skipped.add(1, {"reason": "error"})
            log.exception("entry %s of %s skipped: function=%s", entry.id, STREAM, observed.function)

    def _function(self, observed: Observed) -> Function:
        """Finds or creates the function, and makes it the one observed last."""
        name = observed.function
        function = self.functions.pop(name, None)
        if function is None:
            inherited = self._inherited(observed.configuration)
            function = Function(name, observed.configuration, self._settings, inherited)
            while len(self.functions) >= self._settings.max_functions:
                oldest = next(iter(self.functions))
                log.warning(
                    "function=%s dropped: it was observed least recently of %d",
                    oldest,
                    self._settings.max_functions,
                )
                self._drop(oldest)
        self.functions[name] = function
        return function

    def _awake(self, function: Function) -> None:
        """Notes that function is in use, and lets the least recently used rest if too many do not."""
        self._not_at_rest.pop(function.name, None)
        self._not_at_rest[function.name] = function
        while len(self._not_at_rest) > MOST_AWAKE:
            self._not_at_rest.pop(next(iter(self._not_at_rest))).rest()

    def _inherited(self, configuration: str) -> Answers | None:
        if not configuration:
            return None
        for function in reversed(self.functions.values()):
            published = function.published
            if function.configuration == configuration and any(published.answers.unknown):
                return published.answers_with_offset()
        return None

    def _observe(self, function: Function, entry_id: str, observed: Observed) -> None:
        scored = function.observe(entry_id, observed.sample)
        if scored.repeated:
            _skipped.add(1, {"reason": "repeated"})
            return
        self.scores.add(function.name, scored)
        self._show(function)
        self._want_refit(function)

    def _show(self, function: Function) -> None:
        """Serves the function as it is now, and notes that it is to be saved."""
        if self.loaded.is_set():  # until then, what was served before is better than one half rebuilt
            self._replica.publish(function.published)
        self._mark(function.name)

    def _mark(self, name: str) -> None:
        self._changed[name] = None
        if self._is_news(self.functions[name].published):
            self._to_save.set()
        self._save_in_time()

    def _is_news(self, published: Published) -> bool:
        return self._announced.get(published.function) != published.version

    def _save_in_time(self) -> None:
        if not self._unsaved.is_set():
            self._unsaved_since = time.monotonic()
            self._unsaved.set()

    def _save_all_now(self) -> None:
        self._unsaved_since = -math.inf
        self._unsaved.set()
        self._to_save.set()

    def _drop(self, name: str) -> None:
        del self.functions[name]
        for of_function in (self._changed, self._announced, self._not_at_rest, self._to_skip):
            of_function.pop(name, None)
        self._refits.drop(name)
        self._awaited.discard(name)
        self.scores.drop(name)
        self._replica.forget(name)
        self._dropped[name] = None
        self._save_in_time()
        self._to_save.set()

    async def _save(self) -> None:
        back_off = BackOff()
        while True:
            await self._unsaved.wait()
            whole_at = self._unsaved_since + self._settings.save_interval_seconds
            try:
                async with asyncio.timeout(whole_at - time.monotonic()):
                    await self._to_save.wait()
            except TimeoutError:
                pass
            since = self._unsaved_since
            whole = time.monotonic() >= since + self._settings.save_interval_seconds
            try:
                await (self.save() if whole else self._save_news())
                back_off.reset()
                wait = SAVE_SECONDS
            except (StoreUnreachableError, *UNREACHABLE) as error:
                self._failed("could not save the learned functions, retrying", error)
                self._unsaved_since = since
                self._unsaved.set()
                self._to_save.set()
                wait = back_off.next()
            await asyncio.sleep(wait)

    async def save(self) -> None:
        """Saves and announces what changed, then acknowledges the entries learned from.

        Raises LockLostError, StoreUnreachableError or UNREACHABLE. The next call saves what this one did not.
        """
        self._unsaved.clear()
        learned = list(self._unacknowledged)
        await self._save_changed(self._changed)
        if self.loaded.is_set() and not self.saved and time.monotonic() >= self._complete_from:
            await self._store.complete(self._hold)
            self.saved = True
        await self._stream.acknowledge(learned)
        for entry_id in learned:
            self._unacknowledged.pop(entry_id, None)
        self._saved.set()

    async def _save_news(self) -> None:
        """Saves like save, but only functions whose answers changed, and acknowledges nothing yet.

        A function's answers change far less often than it is observed.
        """
        news = [
            n for n in self._changed if n in self.functions and self._is_news(self.functions[n].published)
        ]
        await self._save_changed(news)

    async def _save_changed(self, names: Iterable[str]) -> None:
        self._to_save.clear()
        await self._check()
        to_save = dict.fromkeys(names)
        changed, self._changed = self._changed, {}
        dropped, self._dropped = self._dropped, {}
        saved: list[Published] = []
        try:
            if dropped:
                await self._store.drop(dropped, self._hold)
            for some in parts([name for name in changed if name in to_save]):
                saved += await self._save_some(some)
            await self._check()
        except BaseException:
            self._changed = changed | self._changed
            self._dropped = dropped | self._dropped
            raise
        self._changed = {name: None for name in changed if name not in to_save} | self._changed
        await self._announce(saved, dropped)

    async def _save_some(self, names: Iterable[str]) -> list[Published]:
        states = []
        for name in names:
            if (function := self.functions.get(name)) is not None:
                states.append(function.state())
                await asyncio.sleep(0)
        if states:
            await self._store.save(states, self._hold)
        return [state.published for state in states]

    async def _check(self) -> None:
        """Checks the fence: an object store does not refuse a learner that slept through its lock's loss."""
        if self._store.by_fence:
            await self._stream.check()

    async def _announce(self, saved: Iterable[Published], dropped: Iterable[str]) -> None:
        changed = [p for p in saved if self._is_news(p)]
        gone = [name for name in dropped if name not in self.functions]
        if changed or gone:
            try:
                await announce(self._connection, announcement(changed, gone))
            except UNREACHABLE as error:
                # Saved again, they are announced again.
                self._connection.failed(error)
                self._changed |= {p.function: None for p in changed if p.function in self.functions}
                self._dropped |= dict.fromkeys(gone)
                self._save_in_time()
                return
        self._announced |= {p.function: p.version for p in changed if p.function in self.functions}

    def _want_refit(self, function: Function) -> None:
        if function.refit_due() and self._refits.want(function.name, function.haste(), time.monotonic()):
            self._refit_wanted.set()

    async def _refit_all(self) -> None:
        """Refits one function at a time, so that refits take at most one thread from requests."""
        while True:
            if self._consumed and not self._awaited:
                self.caught_up.set()
            self._refit_wanted.clear()
            wait = None
            if (following := self._refits.next(time.monotonic())) is not None:
                at, haste, name = following
                wait = at - time.monotonic()
                if wait <= 0:
                    self._refits.begin(name)
                    function = self.functions.get(name)
                    if function is not None and function.refit_due():
                        await self._refit(function, haste)
                    self._awaited.discard(name)
                    continue
            try:
                async with asyncio.timeout(wait):
                    await self._refit_wanted.wait()
            except TimeoutError:
                continue

    async def _refit(self, function: Function, haste: Haste) -> None:
        name = function.name
        started = time.perf_counter()
        self._refits.rest(name, time.monotonic() + self._settings.refit_interval_seconds)
        self._awake(function)
        try:
            fitted, cpu_seconds = await asyncio.to_thread(_timed, function.start_refit())
            seconds = time.perf_counter() - started
            self._refits.spend(haste, time.monotonic(), cpu_seconds)
            if self.functions.get(name) is not function:
                return  # it was dropped meanwhile
            self._awake(function)
            function.adopt(fitted)
        except Exception:
            # One function's samples must not stop the others from being learned.
            log.exception("function=%s refit failed: its answers stay as they were", name)
            _refitted.add(1, {"result": "failed"})
            self._refits.rest(name, time.monotonic() + _AFTER_FAILURE_SECONDS)
        else:
            _refitted.add(1, {"result": "fitted"})
            _refit_seconds.record(seconds)
            log.info(
                "function=%s refit haste=%s observations=%d version=%d ms=%.1f",
                name,
                haste.name.lower(),
                function.published.observations,
                function.published.version,
                1e3 * seconds,
            )
            self._show(function)
        self._want_refit(function)

    async def _retire_all(self) -> None:
        while True:
            await self.caught_up.wait()
            # By Redis' clock, which gave the entries their times.
            since = 1000 * self._stream.seconds - self._settings.retire_days * _MILLISECONDS_A_DAY
            for name in [n for n, f in self.functions.items() if _last_seen(f) < since]:
                log.info("function=%s retired: not observed for %g days", name, self._settings.retire_days)
                self._drop(name)
            await asyncio.sleep(_RETIRE_SECONDS)


def _last_seen(function: Function) -> int:
    """Unix milliseconds; a version is nearly that, too."""
    return function.last_milliseconds or function.published.version


def _timed(work: Callable[[], Fitted]) -> tuple[Fitted, float]:
    """Runs work; returns its result and the CPU seconds that it took."""
    started = time.thread_time()
    return work(), time.thread_time() - started


def _adopted(published: Published, settings: Settings) -> Function:
    """Makes a function from its answers, when nothing else of it is left."""
    answers = published.answers_with_offset()
    function = Function(published.function, published.configuration, settings, answers)
    # The calls behind the offset are lost, so the answers include it: it must outlast the first observation.
    function.published = replace(published, version=published.version + 1, answers=answers, offset=(0, 0))
    return function
