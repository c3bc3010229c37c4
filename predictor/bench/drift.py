"""A function begins to need 1.6 times the memory: how long are its answers too low?"""

from collections.abc import Callable
from dataclasses import dataclass

from bench.calls import Calls
from bench.learner import SETTINGS, Learner, sample
from bench.scores import Outcome, Share, harvested, under_predicted
from bench.zygote import Call
from libra_predictor import labels

FACTOR = 1.6
FIRST = 60  # calls
REFIT_EVERY = 20  # calls
# Bytes between two options. With the default, most functions of this bench need no other option after the
# change.
FINE_STEP = 16 << 20
STEPS = (FINE_STEP, SETTINGS.memory_step_bytes)

OURS = "ours"
STATIC = "static"
REFIT_ONLY = "refit only"

_MEMORY = 1
_AFFECTED = 0.5


@dataclass
class Drift:
    """One function with one seed, after the change."""

    seed: int
    name: str
    affected: float  # the share of calls for which another option is right than before
    outcomes: dict[str, list[Outcome]]  # of memory, by what is compared, in the order of the calls

    @property
    def felt(self) -> bool:
        """Whether most of the calls need another option than before."""
        return self.affected >= _AFFECTED


@dataclass(frozen=True, slots=True)
class Recovery:
    first: Share  # under-predicted of the first calls
    later: Share
    later_harvest: Share


def drifts(calls: Calls, train: int, step: int) -> list[Drift]:
    """The change comes after the first train calls of each function; step is in bytes."""
    found = []
    for seed, made in calls.items():
        for name, of_function in made.items():
            before, after = of_function[:train], of_function[train:]
            needs = [_option(call, step, FACTOR) for call in after]
            moved = [_option(call, step) < need for call, need in zip(after, needs, strict=True)]
            # The owner's allocation, which also holds the calls after the change.
            allocation = max(_option(call, step, FACTOR) for call in of_function)
            learner = Learner(name, SETTINGS.model_copy(update={"memory_step_bytes": step}))
            for call in before:
                learner.observe(sample(call))
            answers = {
                STATIC: [learner.answer(call.size, (0, allocation))[_MEMORY] for call in after],
                REFIT_ONLY: _refit_only(learner.copy(), after),
                OURS: _ours(learner, after, allocation),
            }
            outcomes = {
                what: [
                    Outcome(allocation, a, n, function=name, seed=seed)
                    for a, n in zip(given, needs, strict=True)
                ]
                for what, given in answers.items()
            }
            found.append(Drift(seed, name, sum(moved) / len(moved), outcomes))
    return found


def recovery(found: list[Drift], what: str) -> Recovery:
    first = [o for d in found for o in d.outcomes[what][:FIRST]]
    later = [o for d in found for o in d.outcomes[what][FIRST:]]
    return Recovery(under_predicted(first), under_predicted(later), harvested(later))


def _option(call: Call, step: int, factor: float = 1.0) -> int:
    return labels.option(int(call.memory_bytes * factor), step)


def _ours(learner: Learner, after: list[Call], allocation: int) -> list[int]:
    def refit(_: int) -> None:
        if learner.function.refit_due():
            learner.refit()

    return _each(learner, after, lambda size: learner.answer(size, (0, allocation))[_MEMORY], refit)


def _refit_only(learner: Learner, after: list[Call]) -> list[int]:
    """Models that are refitted every twenty calls, without an offset."""

    def raw(size: int) -> int:
        return learner.function.published.answers.at(size)[_MEMORY]

    def refit(i: int) -> None:
        if (i + 1) % REFIT_EVERY == 0:
            learner.refit()

    return _each(learner, after, raw, refit)


def _each(
    learner: Learner, after: list[Call], answer: Callable[[int], int], refit: Callable[[int], None]
) -> list[int]:
    """Every call is answered before it is learned from."""
    answers = []
    for i, call in enumerate(after):
        answers.append(answer(call.size))
        learner.observe(sample(call, FACTOR), refit=False)
        refit(i)
    return answers
