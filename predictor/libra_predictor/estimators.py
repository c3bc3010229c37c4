"""The estimators of a function's demand, and the choice between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from libra_predictor.labels import Resource
from libra_predictor.observations import Sample
from libra_predictor.published import Answers
from libra_predictor.trainer import fit as train

NO_ESTIMATOR = "none"
INHERITED = "inherited"


@dataclass(frozen=True, slots=True)
class Fit:
    """What was learned of a function."""

    answers: Answers  # without floor and offset
    estimators: tuple[str, str, str]  # of CPU, memory and duration
    # For CPU and memory: peak and answer of the last calls whose demand was seen, oldest first, each answered
    # by what was learned without it.
    held_out: tuple[list[tuple[int, int]], list[tuple[int, int]]]
    censored: int
    gate: tuple[float, float, float] | None


def fit(
    samples: Sequence[Sample],
    resources: tuple[Resource, Resource],
    largest: tuple[int, int],
    estimator: str,
    inherited: Answers | None,
) -> Fit:
    """Learns from samples, oldest first; there is at least one."""
    fitted = train(samples, *largest)
    answers = fitted.answers
    return Fit(
        Answers(answers.cpu_milli, answers.memory_bytes, answers.duration_ms, answers.unknown),
        ("xgboost",) * 3,
        ([], []),
        fitted.censored,
        None,
    )
