from libra_predictor.function import Scored
from libra_predictor.scores import MOST_FUNCTIONS, OTHERS, Scores

MISSED = Scored(missed_cpu=True, missed_memory=False)


def test_functions_without_room_for_series_of_their_own_are_counted_together() -> None:
    scores = Scores()
    for _ in range(2):
        for i in range(MOST_FUNCTIONS + 5):
            scores.add(f"default/f-{i}", MISSED)
    assert len(scores.of) == 2 * MOST_FUNCTIONS + 2
    others = scores.of[OTHERS, "cpu"]
    assert (others.calls, others.missed) == (10, 10)
    assert scores.of["default/f-0", "memory"].calls == 2

    for i in range(2):
        scores.drop(f"default/f-{i}")
    scores.add("default/new", MISSED)
    assert scores.of["default/new", "cpu"].calls == 1, "there is room again"
    assert scores.of[OTHERS, "memory"].calls == 10, "a counter never goes down"
