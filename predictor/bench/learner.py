"""A function of the predictor with the default settings, without a server around it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.zygote import Call
from libra_predictor import labels
from libra_predictor.estimators import ClassModel
from libra_predictor.function import Function
from libra_predictor.observations import Sample
from libra_predictor.settings import Settings, parse

SETTINGS = parse([], {})  # the defaults

_FIRST_ENTRY = 1_700_000_000_000  # Unix milliseconds

Pair = tuple[int, int]  # CPU in millicores and memory in bytes


def sample(call: Call, memory_factor: float = 1.0) -> Sample:
    """A call as the node agent would report it, not held back by a limit."""
    return Sample(
        size=call.size,
        duration_ns=call.duration_ns,
        peak_cpu_milli=call.cpu_milli,
        peak_memory_bytes=int(call.memory_bytes * memory_factor),
        limit_cpu_milli=0,
        limit_memory_bytes=0,
        throttled_share=0.0,
        first=False,
        cpu_time_ns=call.cpu_time_ns,
    )


def needed(call: Call) -> Pair:
    return (
        labels.option(call.cpu_milli, SETTINGS.cpu_step_milli),
        labels.option(call.memory_bytes, SETTINGS.memory_step_bytes),
    )


def class_model(calls: Sequence[Call], resource: int) -> ClassModel:
    """The model of what calls needed of one resource: 0 for CPU, 1 for memory."""
    return ClassModel(
        [
            labels.Label(use=i, size=call.size, option=needed(call)[resource], censored=False)
            for i, call in enumerate(calls)
        ]
    )


@dataclass
class Times:
    """How long learning took, in milliseconds."""

    training: list[float] = field(default_factory=list)  # of three models, again and again
    refit: list[float] = field(default_factory=list)  # including the choice between estimators
    update: list[float] = field(default_factory=list)  # an observation

    def extend(self, other: "Times") -> None:
        self.training += other.training
        self.refit += other.refit
        self.update += other.update


class Learner:
    """A Function that gets observations one after another, and is refitted whenever that is due."""

    def __init__(self, name: str, settings: Settings = SETTINGS) -> None:
        self._settings = settings
        self.function = Function(f"bench/{name}", f"bench/{name}", settings)
        self.times = Times()
        self._entries = 0

    def copy(self) -> "Learner":
        """A copy that has learned the same, and goes on learning by itself."""
        other = Learner(self.function.name, self._settings)
        other.function = Function.restore(self.function.state(), self._settings)
        other._entries = self._entries
        return other

    def observe(self, observed: Sample, refit: bool = True) -> None:
        self._entries += 1
        began = time.perf_counter()
        self.function.observe(f"{_FIRST_ENTRY + self._entries}-0", observed)
        self.times.update.append(1e3 * (time.perf_counter() - began))
        if refit and self.function.refit_due():
            self.refit()

    def refit(self) -> None:
        began = time.perf_counter()
        fitted = self.function.start_refit()()
        self.times.refit.append(1e3 * (time.perf_counter() - began))
        self.function.adopt(fitted)

    def answer(self, size: int, allocation: Pair = (0, 0)) -> Pair:
        """The assumed need of a call: at least its allocation, if the answers end below its size."""
        cpu, memory = self.function.published.at(size)[:2]
        if size <= self.function.published.answers.largest_size:
            return cpu, memory
        return max(cpu, allocation[0]), max(memory, allocation[1])
