import pytest

from libra_predictor import scores as scores_module
from libra_predictor.function import Scored
from libra_predictor.scores import MOST_FUNCTIONS, OTHERS, Scores

MISSED = Scored(missed_cpu=True, missed_memory=False)


@pytest.fixture(autouse=True)
def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores_module, "_ever", set())


def test_functions_without_room_for_series_of_their_own_are_counted_together() -> None:
    scores = Scores()
    for _ in range(2):
        for i in range(MOST_FUNCTIONS + 5):
            scores.add(f"default/f-{i}", MISSED)
    assert len(scores.of) == 2 * MOST_FUNCTIONS + 2
    others = scores.of[OTHERS, "cpu"]
    assert (others.calls, others.missed) == (10, 10)
    assert scores.of["default/f-0", "memory"].calls == 2


def test_a_place_is_for_the_life_of_the_process() -> None:
    """OpenTelemetry keeps every set of labels that it has seen."""
    scores = Scores()
    for i in range(MOST_FUNCTIONS):
        scores.add(f"default/f-{i}", MISSED)
    for i in range(2):
        scores.drop(f"default/f-{i}")
    scores.add("default/new", MISSED)
    assert scores.of[OTHERS, "cpu"].calls == 1
    scores.add("default/f-0", MISSED)
    assert scores.of["default/f-0", "cpu"].calls == 1, "it has a place already"

    scores.clear()
    later = Scores()
    for function in ("default/f-1", "default/newer"):
        later.add(function, MISSED)
    assert later.of.keys() == {
        (function, resource) for function in ("default/f-1", OTHERS) for resource in ("cpu", "memory")
    }
