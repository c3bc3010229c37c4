"""Trains on a function's first calls, and asks for the calls after them."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bench import baselines
from bench.baselines import MODELS, Model, Values
from bench.calls import Calls, Say
from bench.learner import SETTINGS, Learner, Pair, Times, class_model, needed, sample
from bench.scores import Outcome
from bench.workloads import WORKLOADS
from bench.zygote import Call
from libra_predictor.estimators import (
    HISTOGRAM_PEAK,
    MEDIAN,
    QuantileModel,
    microseconds,
    milliseconds,
    ranked,
)

RESOURCES = ("cpu", "memory")
OURS = "ours"
ARG_MAX = "arg-max"
RF = "RF"
HISTOGRAM = "histogram"
MOVING_WINDOW = "moving window"
MEDIAN_OF_ALL = "median of all"

# The allocation that each function's owner has set: two cores and 1,024 MB, the paper's example (LIBRA,
# section 3).
ALLOCATION = (2000, 1 << 30)

_TRAININGS = 20  # of the same calls, to time them


@dataclass
class Trial:
    """One function with one seed: the needs of its held-out calls, and each estimator's answers."""

    seed: int
    name: str
    size_related: bool
    allocation: Pair
    least: Pair  # allocation that holds every measured call of the function
    calls: list[Call]
    needed: list[Pair]
    # frozen learns nothing from the held-out calls; online learns from each after it was answered.
    frozen: dict[str, list[Pair]]
    online: dict[str, list[Pair]]
    # For the paper's Table 2: the most probable options and the duration in milliseconds, by model.
    probable: dict[str, list[Pair]]
    durations: dict[str, NDArray[np.float64]]
    # In microseconds: the CPU time used, and the predictions of ours and of the learned calls' median.
    used: NDArray[np.float64]
    cpu_times: dict[str, NDArray[np.float64]]
    estimators: tuple[str, str, str]
    gate: tuple[float, float, float] | None
    times: Times

    def outcomes(self, resource: int, answers: Sequence[Pair]) -> list[Outcome]:
        return [
            Outcome(
                self.allocation[resource],
                answer[resource],
                need[resource],
                call.duration_ns / 1e9,
                self.name,
                self.seed,
            )
            for answer, need, call in zip(answers, self.needed, self.calls, strict=True)
        ]

    def accuracy(self, answers: Sequence[Pair], resource: int) -> float:
        return float(np.mean([a[resource] == n[resource] for a, n in zip(answers, self.needed, strict=True)]))

    def r2(self, durations_ms: NDArray[np.float64]) -> float:
        actual = np.array([call.duration_ns / 1e6 for call in self.calls])
        return float(1 - ((actual - durations_ms) ** 2).sum() / ((actual - actual.mean()) ** 2).sum())


def least_allocations(calls: Calls) -> dict[str, Pair]:
    """For each function, the least allocation that would hold every measured call."""
    found: dict[str, Pair] = {}
    for name in WORKLOADS:
        every = [needed(call) for made in calls.values() for call in made[name]]
        found[name] = (max(cpu for cpu, _ in every), max(memory for _, memory in every))
    return found


def trials(calls: Calls, train: int, say: Say) -> list[Trial]:
    """The trials of all functions and seeds: the first train calls are learned from, the rest held out."""
    least = least_allocations(calls)
    found = []
    for seed, made in calls.items():
        for name, of_function in made.items():
            began = time.monotonic()
            trial = _trial(seed, name, least[name], of_function[:train], of_function[train:])
            found.append(trial)
            say(f"seed {seed}: {name}: trained and asked, {time.monotonic() - began:.1f} s")
    return found


def _trial(seed: int, name: str, least: Pair, train: list[Call], held_out: list[Call]) -> Trial:
    sizes = np.array([call.size for call in train], dtype=np.int64)
    asked = np.array([call.size for call in held_out], dtype=np.int64)
    options = [needed(call) for call in train]
    learner = Learner(name)
    for call in train:
        learner.observe(sample(call))
    estimators = learner.function.published
    durations_ms = milliseconds([sample(call) for call in train])

    probable: dict[str, list[Pair]] = {}
    durations: dict[str, NDArray[np.float64]] = {}
    for model in MODELS:
        probable[model.name] = _both(partial(_classified, model, sizes, options, asked))
        durations[model.name] = baselines.regressed(model, sizes, durations_ms)(asked)

    for _ in range(_TRAININGS):
        began = time.perf_counter()
        models = [class_model(train, i) for i in range(2)]
        QuantileModel(sizes.tolist(), durations_ms)
        learner.times.training.append(1e3 * (time.perf_counter() - began))
    middle = QuantileModel(sizes.tolist(), durations_ms, MEDIAN)
    probable[OURS] = _both(lambda i: models[i].most_probable(asked))
    durations[OURS] = middle.evaluate(asked).astype(np.float64)

    allocation = (max(ALLOCATION[0], least[0]), max(ALLOCATION[1], least[1]))
    highest = (_histogram(options, 0), _histogram(options, 1))
    latest = (_latest(options, 0), _latest(options, 1))
    frozen = {
        OURS: [learner.answer(call.size, allocation) for call in held_out],
        ARG_MAX: probable[OURS],
        RF: probable[RF],
        HISTOGRAM: [highest] * len(held_out),
        MOVING_WINDOW: [latest] * len(held_out),
    }
    return Trial(
        seed=seed,
        name=name,
        size_related=WORKLOADS[name].size_related,
        allocation=allocation,
        least=least,
        calls=held_out,
        needed=[needed(call) for call in held_out],
        frozen=frozen,
        online=_online(learner, allocation, options, held_out),
        probable=probable,
        durations=durations,
        used=microseconds([sample(call) for call in held_out]),
        cpu_times={
            OURS: np.array(
                [estimators.answers.cpu_time_at(call.size) for call in held_out], dtype=np.float64
            ),
            MEDIAN_OF_ALL: np.full(len(held_out), np.median(microseconds([sample(call) for call in train]))),
        },
        estimators=(estimators.cpu.estimator, estimators.memory.estimator, estimators.duration.estimator),
        gate=estimators.gate,
        times=learner.times,
    )


def _classified(model: Model, sizes: Values, options: list[Pair], asked: Values, resource: int) -> Values:
    return baselines.classified(model, sizes, np.array([o[resource] for o in options]))(asked)


def _online(
    learner: Learner, allocation: Pair, options: list[Pair], held_out: list[Call]
) -> dict[str, list[Pair]]:
    """Every call is answered before it is learned from."""
    seen = deque(options, maxlen=SETTINGS.window)
    answers: dict[str, list[Pair]] = {OURS: [], HISTOGRAM: [], MOVING_WINDOW: []}
    for call in held_out:
        answers[OURS].append(learner.answer(call.size, allocation))
        answers[HISTOGRAM].append((_histogram(seen, 0), _histogram(seen, 1)))
        answers[MOVING_WINDOW].append((_latest(seen, 0), _latest(seen, 1)))
        learner.observe(sample(call))
        seen.append(needed(call))
    return answers


def _histogram(options: Sequence[Pair], resource: int) -> int:
    return ranked([option[resource] for option in options], HISTOGRAM_PEAK)


def _latest(options: Sequence[Pair], resource: int) -> int:
    return baselines.moving_window([option[resource] for option in options])


def _both(answers: Callable[[int], Values]) -> list[Pair]:
    return [(int(cpu), int(memory)) for cpu, memory in zip(answers(0), answers(1), strict=True)]
