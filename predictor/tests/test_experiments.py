"""A function restored under other settings than its answers were made with, and unlimited durations."""

import json

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from test_function import CALM, OLD, SETTINGS, Caller, at, choices, lives

from libra_predictor.estimators import INHERITED
from libra_predictor.function import Function, FunctionState
from libra_predictor.observations import MAX_DURATION_MS, UNKNOWN_SIZE, Sample
from libra_predictor.published import Answers, Stage
from libra_predictor.settings import Settings


@hypothesis_settings(max_examples=20)
@given(lives, choices, choices, st.sampled_from([None, OLD]))
def test_restored_to_other_answers_it_has_those_of_before_never_again(
    seen: list[Sample], before: Settings, now: Settings, inherited: Answers | None
) -> None:
    if (before.estimator, before.durations) == (now.estimator, now.durations):
        return
    caller = Caller(Function("default/f", "default/c", before, inherited))
    caller.call(*seen)
    state = caller.function.state()
    function = Function.restore(FunctionState.model_validate_json(state.model_dump_json()), now)
    assert function.published.stage is Stage.PROFILING
    assert function.published.version > state.published.version
    assert (function.learned_to, function.last_milliseconds) == (state.learned_to, state.last_milliseconds)
    for size in (UNKNOWN_SIZE, 0, *(s.size for s in seen)):
        assert function.published.at(size) == (0, 0, 0)
    assert INHERITED not in (function.published.cpu.estimator, function.published.duration.estimator)
    kept = min(len(state.window.size), now.window)
    assert function.refit_due() == (kept >= min(now.min_observations, now.window))
    if not function.refit_due():
        return
    version = function.published.version
    function.adopt(function.start_refit()())
    published = function.published
    assert (published.stage, published.observations) == (Stage.MODELLED, kept)
    assert published.version > version
    if now.estimator == "moving-window":
        assert published.cpu.estimator == "moving-window"
    if now.durations == "unlimited":
        assert {published.at(size)[2] for size in (UNKNOWN_SIZE, 0, 1000)} == {MAX_DURATION_MS}
        assert published.duration.estimator == "unlimited"


def test_what_was_stored_before_there_was_a_choice_is_the_default_s() -> None:
    caller = Caller(Function("default/f", "", SETTINGS))
    caller.call(*[CALM] * 12)
    stored = caller.function.state().model_dump()
    del stored["estimator"], stored["durations"]
    state = FunctionState.model_validate_json(json.dumps(stored))
    assert Function.restore(state, SETTINGS).published == caller.function.published


def test_an_unlimited_duration_is_not_held_against_what_calls_last() -> None:
    settings = Settings.model_validate({"durations": "unlimited"})
    caller = Caller(Function("default/f", "", settings))
    caller.call(*[CALM] * 12)
    assert at(caller.function.published)[2] == MAX_DURATION_MS
    (scored,) = caller.call(CALM)
    assert (scored.missed_cpu, scored.error_duration) == (False, None)
