"""A function begins to need 1.6 times the memory: how long are its answers too low?"""

from collections.abc import Callable
from dataclasses import dataclass

from bench.calls import Calls
from bench.heldout import Learner, Pair, allocations, needed, sample
from bench.scores import Outcome, Share, harvested, under_predicted
from bench.zygote import Call

FACTOR = 1.6
FIRST = 60  # calls
REFIT_EVERY = 20  # calls

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
    affected: float  # the share of calls that another option is right for than before
    outcomes: dict[str, list[Outcome]]  # of memory, by what is compared, in the order of the calls

    @property
    def counts(self) -> bool:
        """Whether the change can be felt: most of the calls need another option."""
        return self.affected >= _AFFECTED


@dataclass(frozen=True, slots=True)
class Recovery:
    first: Share  # under-predicted of the first calls
    later: Share
    later_harvest: Share


def drifts(calls: Calls, train: int) -> list[Drift]:
    allocated = allocations(calls)
    found = []
    for seed, made in calls.items():
        for name, of_function in made.items():
            before, after = of_function[:train], of_function[train:]
            allocation = needed_allocation(allocated[name], of_function)
            needs = [needed(call, FACTOR)[_MEMORY] for call in after]
            moved = [needed(call)[_MEMORY] < need for call, need in zip(after, needs, strict=True)]
            answers = {
                OURS: _ours(name, before, after),
                STATIC: _static(name, before, after),
                REFIT_ONLY: _refit_only(name, before, after),
            }
            found.append(
                Drift(
                    seed,
                    name,
                    sum(moved) / len(moved),
                    {
                        what: [Outcome(allocation, a, n) for a, n in zip(given, needs, strict=True)]
                        for what, given in answers.items()
                    },
                )
            )
    return found


def needed_allocation(before: Pair, of_function: list[Call]) -> int:
    """The owner's allocation of memory, which holds the calls after the change as well."""
    return max(before[_MEMORY], *(needed(call, FACTOR)[_MEMORY] for call in of_function))


def recovery(found: list[Drift], what: str) -> Recovery:
    first = [o for d in found for o in d.outcomes[what][:FIRST]]
    later = [o for d in found for o in d.outcomes[what][FIRST:]]
    return Recovery(under_predicted(first), under_predicted(later), harvested(later))


def _trained(name: str, before: list[Call]) -> Learner:
    learner = Learner(name)
    for call in before:
        learner.observe(sample(call))
    return learner


def _ours(name: str, before: list[Call], after: list[Call]) -> list[int]:
    learner = _trained(name, before)
    return _each(after, learner, lambda size: learner.answer(size)[_MEMORY], lambda _: True)


def _static(name: str, before: list[Call], after: list[Call]) -> list[int]:
    learner = _trained(name, before)
    return [learner.answer(call.size)[_MEMORY] for call in after]


def _refit_only(name: str, before: list[Call], after: list[Call]) -> list[int]:
    """Models that are fitted anew every twenty calls, and no offset."""
    learner = _trained(name, before)

    def raw(size: int) -> int:
        return learner.function.published.answers.at(size)[_MEMORY]

    def every(i: int) -> bool:
        if (i + 1) % REFIT_EVERY == 0:
            learner.refit()
        return False

    return _each(after, learner, raw, every)


def _each(
    after: list[Call], learner: Learner, answer: Callable[[int], int], refit: Callable[[int], bool]
) -> list[int]:
    """Every call is answered before it is learned from."""
    answers = []
    for i, call in enumerate(after):
        answers.append(answer(call.size))
        learner.observe(sample(call, FACTOR), refit=False)
        if refit(i) and learner.function.refit_due():
            learner.refit()
    return answers
