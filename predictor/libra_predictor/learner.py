"""Keeps a window of samples per function and, off the event loop, a model that was fitted to it."""

import asyncio
import logging
import time
from collections import deque
from dataclasses import dataclass

from kserve import ModelRepository

from libra_predictor import metrics
from libra_predictor.model import FunctionModel, model_name
from libra_predictor.observations import ObservationStream, Observed, Sample
from libra_predictor.settings import Settings
from libra_predictor.trainer import Answers, fit

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Function:
    window: deque[Sample]
    latest_entry_milliseconds: int = 0
    changed: bool = False
    model: FunctionModel | None = None


class Learner:
    """Publishes a model in the repository for every function with enough observations."""

    def __init__(self, settings: Settings, repository: ModelRepository) -> None:
        self._settings = settings
        self._repository = repository
        self._stream = ObservationStream(settings.redis_addr)
        self._functions: dict[str, _Function] = {}  # the one observed last is the last
        self._read_once = asyncio.Event()
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self.ready = False

    async def run(self) -> None:
        """Learns until stop; raises what it cannot go on after."""
        tasks = [
            asyncio.create_task(work)
            for work in (self._follow(), self._refit_changed(), self._stopping.wait())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._stream.close()

    def stop(self) -> None:
        self._stopping.set()

    async def _follow(self) -> None:
        async for batch, at_end in self._stream.batches():
            for observed in batch:
                self._add(observed)
            if batch:
                self._changed.set()
            if at_end:
                self._read_once.set()

    def _add(self, observed: Observed) -> None:
        function = self._functions.pop(observed.function, None)
        if function is None:
            function = _Function(deque(maxlen=self._settings.window))
            if len(self._functions) >= self._settings.max_functions:
                self._drop(next(iter(self._functions)))
        self._functions[observed.function] = function
        function.window.append(observed.sample)
        function.latest_entry_milliseconds = observed.entry_milliseconds
        function.changed = True

    def _drop(self, function: str) -> None:
        del self._functions[function]
        self._repository.get_models().pop(model_name(function), None)
        log.warning(
            "function=%s dropped: it was not observed for longest of %d",
            function,
            self._settings.max_functions,
        )

    async def _refit_changed(self) -> None:
        await self._read_once.wait()
        while True:
            self._changed.clear()
            for name, function in list(self._functions.items()):
                if function.changed and len(function.window) >= self._settings.min_observations:
                    await self._refit(name, function)
            metrics.FUNCTIONS.set(len(self._repository.get_models()))
            self.ready = True
            await asyncio.sleep(self._settings.refit_interval_seconds)
            await self._changed.wait()

    async def _refit(self, name: str, function: _Function) -> None:
        function.changed = False
        samples, latest = list(function.window), function.latest_entry_milliseconds
        started = time.perf_counter()
        try:
            fitted = await asyncio.to_thread(
                fit, samples, self._settings.largest_cpu_milli, self._settings.largest_memory_bytes
            )
        except Exception:
            # One function's samples must not stop the others from being learned.
            log.exception("function=%s refit failed: its model stays as it was", name)
            metrics.REFITS.labels(result="failed").inc()
            return
        seconds = time.perf_counter() - started
        if self._functions.get(name) is not function:
            return
        function.model = self._publish(name, function.model, fitted.answers, latest)
        metrics.REFITS.labels(result="fitted").inc()
        metrics.REFIT_SECONDS.observe(seconds)
        log.info(
            "function=%s refit observations=%d censored=%d version=%d ms=%.1f",
            name,
            len(samples),
            fitted.censored,
            function.model.version,
            1e3 * seconds,
        )

    def _publish(
        self, name: str, before: FunctionModel | None, answers: Answers, latest: int
    ) -> FunctionModel:
        if before is not None and before.answers == answers:
            return before
        # The time of the entry that it was fitted to, and not a count, so that it does not go back over a
        # restart, after which clients still hold tables of before.
        model = FunctionModel(name, answers, latest if before is None else max(latest, before.version + 1))
        self._repository.update(model)
        return model
