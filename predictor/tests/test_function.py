import dataclasses
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import observation
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from pydantic import ValidationError

from libra_predictor.estimators import HISTOGRAM, INHERITED, NO_ESTIMATOR, XGBOOST
from libra_predictor.function import Function, FunctionState, Haste, Scored
from libra_predictor.observations import (
    MAX_CPU_MILLI,
    MAX_MEMORY_BYTES,
    MAX_SIZE,
    UNKNOWN_SIZE,
    Observed,
    Sample,
    parse,
)
from libra_predictor.published import Answers, Published, Stage
from libra_predictor.settings import Settings
from libra_predictor.tables import constant

MI = 1 << 20
SETTINGS = Settings.model_validate({})
CALM = Sample(
    size=1000,
    duration_ns=100_000_000,
    peak_cpu_milli=250,
    peak_memory_bytes=50 * MI,
    limit_cpu_milli=500,
    limit_memory_bytes=512 * MI,
    throttled_share=0.0,
)
THROTTLED = dataclasses.replace(CALM, peak_cpu_milli=490, throttled_share=0.4)


def sample(base: Sample = CALM, **changes: Any) -> Sample:
    return dataclasses.replace(base, **changes)


class Caller:
    """Observes samples at ascending ids, and refits as soon as it is due, as the learner does."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.refits = 0
        self._ids = (f"{milliseconds}-0" for milliseconds in range(1_700_000_000_000, 1_800_000_000_000))

    def call(self, *samples: Sample) -> list[Scored]:
        scored = []
        for observed in samples:
            scored.append(self.function.observe(next(self._ids), observed))
            if self.function.refit_due():
                self.function.adopt(self.function.start_refit()())
                self.refits += 1
        return scored


@pytest.fixture
def caller() -> Caller:
    return Caller(Function("default/thumb-00001", "default/thumb", SETTINGS))


def at(published: Published, size: int = 1000) -> tuple[int, int, int]:
    return published.at(size)


def test_it_profiles_until_it_has_seen_enough(caller: Caller) -> None:
    function = caller.function
    stages = [function.published.stage]
    assert (function.learned_to, function.last_milliseconds) == ("0-0", 0)
    assert function.published.reason == "0 of 12 observations: use the user allocation"
    scored = caller.call(*[CALM] * 11)
    assert scored == [Scored()] * 11, "there is no answer to score"
    stages.append(function.published.stage)
    assert function.published.reason == "11 of 12 observations: use the user allocation"
    assert at(function.published) == (0, 0, 0)
    assert function.published.cpu.estimator == NO_ESTIMATOR
    caller.call(CALM)
    stages.append(function.published.stage)
    assert stages == [Stage.PROFILING, Stage.PROFILING, Stage.MODELLED]
    assert function.published.reason == "learned from 12 observations"
    assert at(function.published) == at(function.published, UNKNOWN_SIZE) == (300, 64 * MI, 100)
    assert function.learned_to == "1700000000011-0"
    assert function.last_milliseconds == function.published.version == 1_700_000_000_011
    assert caller.call(CALM) == [Scored(False, False, False, 0.0, 0.0, 0.0)]
    assert (function.published.cpu.calls, function.published.cpu.under_predicted) == (1, 0)


def test_refits_are_close_while_it_knows_little_and_then_every_twenty() -> None:
    caller = Caller(Function("default/f", "", SETTINGS))
    due = []
    for i in range(1, 161):
        before = caller.refits
        caller.call(CALM)
        if caller.refits > before:
            due.append(i)
    assert due[:4] == [12, 15, 19, 24]
    assert [later - earlier for earlier, later in zip(due[-4:-1], due[-3:], strict=True)] == [20, 20, 20]


@pytest.mark.parametrize(("size_tells", "cpu"), [(False, 300), (True, 1900)])
def test_rare_needs_for_cpu_keep_nobody_from_lending_where_size_tells_nothing(
    caller: Caller, size_tells: bool, cpu: int
) -> None:
    draw = random.Random(1)  # noqa: S311
    for i in range(160):
        rare = i in (20, 60)
        size = 600_000 if rare else draw.randrange(1000, 1_000_000)
        duration = size if size_tells else draw.randrange(1000, 1_000_000)
        caller.call(
            sample(
                size=size,
                duration_ns=1000 * duration,
                peak_cpu_milli=1900 if rare else 250,
                peak_memory_bytes=(500 if rare else 50) * MI,
                limit_cpu_milli=2000,
            )
        )
    published = caller.function.published
    assert published.gate is not None
    assert (published.gate[2] > 0.9) == size_tells
    assert at(published)[:2] == (cpu, 512 * MI), "memory may be needed too often to do without"
    restored = Function.restore(caller.function.state(), SETTINGS)
    for observed in (restored, caller.function):
        observed.observe("1900000000000-0", CALM)
    assert at(restored.published) == at(caller.function.published)


def test_a_refit_that_is_lost_is_due_still(caller: Caller) -> None:
    caller.call(*[CALM] * 12)
    function = caller.function
    for i in range(3):
        function.observe(f"1900000000000-{i}", CALM)
    assert function.refit_due()
    function.start_refit()
    assert function.refit_due()
    assert Function.restore(function.state(), SETTINGS).refit_due()
    assert function.published.observations == 12
    function.adopt(function.start_refit()())
    assert not function.refit_due()


def test_the_start_up_of_a_container_is_kept_apart(caller: Caller) -> None:
    startup = sample(first=True, peak_cpu_milli=490, duration_ns=10**10, peak_memory_bytes=500 * MI)
    assert caller.call(*[startup] * 7) == [Scored()] * 7
    reason = "0 of 12 observations (7 start-ups, which are kept apart): use the user allocation"
    assert caller.function.published.reason == reason
    caller.call(*[startup] * 23)
    assert caller.function.published.reason.startswith("0 of 12 observations (20 or more start-ups, ")
    caller.call(CALM)
    assert caller.function.published.reason == "1 of 12 observations: use the user allocation"
    caller.call(*[CALM] * 11)
    assert at(caller.function.published) == (300, 64 * MI, 100)
    caller.call(startup)
    assert at(caller.function.published) == (300, 64 * MI, 100)


def test_a_throttled_function_may_borrow_twice_what_it_has_at_the_next_call(caller: Caller) -> None:
    caller.call(*[CALM] * 40)
    (scored,) = caller.call(THROTTLED)
    assert (scored.missed_cpu, scored.error_cpu, scored.error_duration) == (True, -2.0, None)
    assert (scored.missed_memory, scored.error_memory) == (False, 0.0)
    assert at(caller.function.published)[0] == 1000
    assert caller.function.published.censored == 1
    caller.call(sample(THROTTLED, limit_cpu_milli=1000, peak_cpu_milli=1000))
    assert at(caller.function.published)[0] == 2000
    refits = caller.refits
    caller.call(sample(THROTTLED, limit_cpu_milli=2000, peak_cpu_milli=2000))
    assert at(caller.function.published)[0] == 2000, "the largest option"
    assert caller.refits <= refits + 1
    caller.call(*[sample(peak_cpu_milli=1150, limit_cpu_milli=2000)] * 60)
    assert at(caller.function.published)[0] <= 2000


def test_what_was_lent_counts_as_what_it_had(caller: Caller) -> None:
    def lent(cpu_milli: int, peak: int) -> Sample:
        """A call whose limit was still the owner's when it began."""
        changes: dict[str, Any] = {
            "limit": {"cpu_milli": 500, "memory_bytes": 512 * MI},
            "limit_at_peak": {"cpu_milli": cpu_milli, "memory_bytes": 512 * MI},
            "peak": {"cpu_milli": peak, "memory_bytes": 50 * MI},
        }
        observed = parse(
            {b"v": b"1", b"data": json.dumps(observation(throttled_share=0.1, **changes)).encode()}
        )
        assert isinstance(observed, Observed)
        return observed.sample

    caller.call(*[lent(500, 500)] * 12)
    assert caller.function.published.at(4096)[0] == 1000
    caller.call(*[lent(1000, 1000)] * 12)
    assert caller.function.published.at(4096)[0] == 2000
    caller.call(*[lent(2000, 1150)] * 12)
    assert caller.function.published.at(4096)[0] == 1200
    assert caller.function.published.censored == 0, "the demand was seen"


def test_a_peak_above_the_answer_is_a_miss_of_a_censored_call_as_well(caller: Caller) -> None:
    function = caller.function
    caller.call(*[CALM] * 60)
    before = function.published
    scored = function.observe("1800000000000-0", THROTTLED)
    assert (scored.missed_cpu, scored.error_cpu) == (True, -2.0), "by two options at least"
    assert function.published.cpu.calls == before.cpu.calls + 1
    assert function.published.cpu.under_predicted == 1
    assert function.published.offset[0] == 200, "before any refit"
    near = sample(peak_memory_bytes=500 * MI)
    scored = function.observe("1800000000001-0", near)
    assert (scored.missed_memory, scored.error_memory) == (True, -7.0)
    assert function.published.offset[1] == 448 * MI
    function.observe("1800000000002-0", THROTTLED)
    scored = function.observe("1800000000003-0", sample(THROTTLED, peak_cpu_milli=1000, limit_cpu_milli=1000))
    assert function.published.stage == "modelled"
    assert scored.missed_cpu
    function.observe("1800000000004-0", sample(THROTTLED, peak_cpu_milli=2000, limit_cpu_milli=2000))
    assert function.published.stage == "drifted"


def test_a_censored_call_within_the_answer_tells_nothing_of_it(caller: Caller) -> None:
    function = caller.function
    caller.call(*[sample(peak_cpu_milli=490)] * 60)
    before = function.published
    scored = function.observe("1800000000000-0", THROTTLED)
    assert (scored.missed_cpu, scored.error_cpu) == (None, None)
    assert (function.published.cpu, function.published.offset) == (before.cpu, before.offset)


def test_near_its_memory_limit_a_function_may_have_twice_of_it(caller: Caller) -> None:
    caller.call(*[CALM] * 40, sample(peak_memory_bytes=500 * MI))
    assert at(caller.function.published)[1] == 1024 * MI


def test_a_call_that_failed_for_want_of_memory_tells_of_memory_alone(caller: Caller) -> None:
    caller.call(*[CALM] * 40)
    killed = sample(failed=True, peak_memory_bytes=511 * MI, peak_cpu_milli=480, duration_ns=1)
    assert caller.call(killed) == [Scored(missed_memory=True, error_memory=-7.0)]
    assert at(caller.function.published) == (300, 1024 * MI, 100)
    caller.call(*[killed] * 3)
    assert at(caller.function.published) == (300, 1024 * MI, 100)


def test_a_function_that_only_ever_failed_gets_more_memory(caller: Caller) -> None:
    caller.call(*[sample(failed=True, peak_memory_bytes=511 * MI)] * 12)
    assert at(caller.function.published) == (300, 1024 * MI, 100)


def test_what_is_published_stays_within_what_the_activator_takes(caller: Caller) -> None:
    caller.call(*[CALM] * 40)
    odd = sample(peak_cpu_milli=MAX_CPU_MILLI, peak_memory_bytes=MAX_MEMORY_BYTES, limit_memory_bytes=0)
    for _ in range(20):
        caller.call(odd)
        published = caller.function.published
        for cpu_milli, memory_bytes in (published.offset, published.largest, at(published)[:2]):
            assert cpu_milli <= 1 << 20
            assert memory_bytes <= 1 << 40


def test_a_larger_allocation_is_not_capped_below_itself(caller: Caller) -> None:
    large = sample(limit_cpu_milli=4000, peak_cpu_milli=3900, limit_memory_bytes=4096 * MI)
    caller.call(*[large] * 12)
    assert caller.function.published.largest >= at(caller.function.published)[:2]
    assert at(caller.function.published)[0] == 3900 // 100 * 100


def follows_size(draw: random.Random, factor: float = 1.0) -> Sample:
    size = int(10 ** draw.uniform(3, 8))
    demand = (size / 1e8) ** 0.4 * draw.uniform(0.97, 1.03)
    return sample(
        size=size,
        duration_ns=int(1e9 * demand) + 10**7,
        peak_cpu_milli=int(100 + 900 * demand),
        peak_memory_bytes=int((40 + 400 * demand) * factor * MI),
        limit_cpu_milli=2000,
        limit_memory_bytes=1024 * MI,
    )


def test_the_offset_raises_no_answer_above_what_was_needed(caller: Caller) -> None:
    """One thread needs a core at most, however uncertain the answers to small inputs are."""
    draw = random.Random(1)  # noqa: S311
    for _ in range(150):
        size = int(10 ** draw.uniform(3, 6))
        peak = min(990, int(size**0.5 * draw.choice([1, 1, 1, 2])))
        caller.call(sample(size=size, peak_cpu_milli=peak, limit_cpu_milli=2000))
    published = caller.function.published
    assert published.offset[0] >= 200
    assert at(published, 10**6)[0] == published.largest[0] == 1000
    assert at(published, 10**4)[0] == published.answers.at(10**4)[0] + published.offset[0]


def follows_nothing(draw: random.Random) -> Sample:
    size = int(10 ** draw.uniform(3, 8))
    return sample(
        size=size,
        duration_ns=int(1e9 * draw.random()),
        peak_cpu_milli=int(100 + 900 * draw.betavariate(2, 4)),
        peak_memory_bytes=int((40 + 400 * draw.betavariate(2, 4)) * MI),
        limit_cpu_milli=2000,
        limit_memory_bytes=1024 * MI,
    )


@pytest.mark.parametrize(("kind", "most"), [(follows_size, 0.01), (follows_nothing, 0.03)])
def test_few_calls_are_under_predicted(kind: Callable[[random.Random], Sample], most: float) -> None:
    scored: list[Scored] = []
    for seed in range(3):
        caller, draw = Caller(Function("default/f", "", SETTINGS)), random.Random(seed)  # noqa: S311
        scored += caller.call(*(kind(draw) for _ in range(400)))[60:]
    assert sum(s.missed_cpu or False for s in scored) <= most * len(scored)
    assert sum(s.missed_memory or False for s in scored) <= most * len(scored)


def test_it_follows_a_drift_within_a_few_calls() -> None:
    soon: list[Scored] = []
    later: list[Scored] = []
    for seed in range(4):
        caller, draw = Caller(Function("default/f", "", SETTINGS)), random.Random(seed)  # noqa: S311
        caller.call(*(follows_size(draw) for _ in range(200)))
        assert caller.function.published.stage is Stage.MODELLED
        calls = caller.call(*(follows_size(draw, 1.6) for _ in range(200)))
        soon += calls[:60]
        later += calls[60:]
    assert sum(s.missed_memory or False for s in soon) <= 0.10 * len(soon)
    assert sum(s.missed_memory or False for s in later) <= 0.03 * len(later)


def test_a_drift_is_noticed_although_the_offset_covers_it_at_once() -> None:
    fine = Settings.model_validate({"memory_step_bytes": 16 * MI})
    for seed in range(4):
        caller, draw = Caller(Function("default/f", "", fine)), random.Random(seed)  # noqa: S311
        caller.call(*(follows_size(draw) for _ in range(200)))
        assert caller.function.published.stage is Stage.MODELLED
        stages = []
        for _ in range(15):
            caller.call(follows_size(draw, 1.6))
            stages.append(caller.function.published.stage)
        assert Stage.DRIFTED in stages
        caller.call(*(follows_size(draw, 1.6) for _ in range(60)))
        assert caller.function.published.observations < 100, "what was before is forgotten"


def test_inputs_beyond_what_was_learned_say_nothing_of_the_answers(caller: Caller) -> None:
    caller.call(*[CALM] * 60)
    before = caller.function.published
    beyond = sample(size=10**7, peak_cpu_milli=450, peak_memory_bytes=500 * MI, limit_memory_bytes=1024 * MI)
    scored = [caller.function.observe(f"180000000000{i}-0", beyond) for i in range(5)]
    assert {(s.missed_cpu, s.missed_memory) for s in scored} == {(None, None)}, "nothing was lent to them"
    after = caller.function.published
    assert (after.offset, after.cpu.calls, after.stage) == (before.offset, before.cpu.calls, Stage.MODELLED)
    caller.function.adopt(caller.function.start_refit()())
    assert caller.function.published.answers.largest_size == 10**7
    assert caller.function.published.at(10**7)[:2] == (500, 512 * MI)


@pytest.mark.parametrize("refit_every", [10, 20])
def test_a_drift_is_over_after_calm_calls_however_often_it_is_refitted(refit_every: int) -> None:
    caller = Caller(Function("default/f", "", Settings.model_validate({"refit_every": refit_every})))
    caller.call(*[CALM] * 60)
    caller.call(*(sample(peak_memory_bytes=p * MI) for p in (90, 150, 450)))
    assert caller.function.published.stage == "drifted"
    caller.call(*[CALM] * 20)
    assert caller.function.published.stage == "modelled"


def test_calls_that_waited_for_a_full_node_cost_the_first_idle_one_a_miss(caller: Caller) -> None:
    # Such a call looks like one that needs little: it got what others left, and was not throttled.
    caller.call(*(sample(peak_cpu_milli=300, limit_cpu_milli=1000) for _ in range(200)))
    idle = caller.call(*(sample(peak_cpu_milli=750, limit_cpu_milli=1000) for _ in range(20)))
    assert [call.missed_cpu for call in idle] == [True] + [False] * 19


class Patient(Caller):
    """As a learner under load: it refits whenever it must, and never when it need not."""

    def call(self, *samples: Sample) -> list[Scored]:
        scored = []
        for observed in samples:
            scored.append(self.function.observe(next(self._ids), observed))
            if self.function.refit_due() and self.function.haste() is not Haste.WHENEVER:
                self.function.adopt(self.function.start_refit()())
                self.refits += 1
        return scored


def test_a_function_that_is_learned_is_seldom_refitted_under_load() -> None:
    for kind in (follows_size, follows_nothing):
        caller, draw = Patient(Function("default/f", "", SETTINGS)), random.Random(1)  # noqa: S311
        caller.call(*(kind(draw) for _ in range(200)))
        young = caller.refits
        scored = caller.call(*(kind(draw) for _ in range(1600)))
        assert 4 <= caller.refits - young <= 8, "of 80 that were due"
        for missed in ([s.missed_cpu for s in scored], [s.missed_memory for s in scored]):
            assert sum(m or False for m in missed) <= 0.03 * len(scored)


def test_what_is_tried_of_a_throttled_function_is_taken_for_no_shift() -> None:
    caller, draw = Patient(Function("default/f", "", SETTINGS)), random.Random(1)  # noqa: S311

    def some() -> Sample:
        observed = sample(follows_nothing(draw), limit_cpu_milli=700)
        if observed.peak_cpu_milli < 600:
            return observed
        return sample(observed, peak_cpu_milli=min(700, observed.peak_cpu_milli), throttled_share=0.3)

    caller.call(*(some() for _ in range(200)))
    young = caller.refits
    caller.call(*(some() for _ in range(1200)))
    assert caller.refits - young <= 20, "of 60 that were due, and as many that its limit asked for"


def test_under_load_a_drift_is_followed_as_soon() -> None:
    soon: list[Scored] = []
    later: list[Scored] = []
    for seed in range(4):
        caller, draw = Patient(Function("default/f", "", SETTINGS)), random.Random(seed)  # noqa: S311
        caller.call(*(follows_size(draw) for _ in range(400)))
        calls = caller.call(*(follows_size(draw, 1.6) for _ in range(200)))
        soon += calls[:60]
        later += calls[60:]
    assert sum(s.missed_memory or False for s in soon) <= 0.10 * len(soon)
    assert sum(s.missed_memory or False for s in later) <= 0.03 * len(later)


@pytest.mark.parametrize("since_refit", [0, 30, 130])
def test_under_load_a_function_that_needs_less_is_learned_anew(since_refit: int) -> None:
    def spare(published: Published, factor: float) -> float:
        """By how many MiB, on average, answers exceed the need."""
        draw, total = random.Random(7), 0.0  # noqa: S311
        for _ in range(200):
            needed = follows_size(draw, factor)
            total += (at(published, needed.size)[1] - needed.peak_memory_bytes) / MI
        return total / 200

    caller, draw = Patient(Function("default/f", "", SETTINGS)), random.Random(3)  # noqa: S311
    caller.call(*(follows_size(draw, 2.0) for _ in range(200)))
    while caller.function.state().since_refit:
        caller.call(follows_size(draw, 2.0))
    caller.call(*(follows_size(draw, 2.0) for _ in range(since_refit)))
    before = spare(caller.function.published, 2.0)
    refits = caller.refits
    calls = 0
    while caller.refits == refits:
        caller.call(follows_size(draw, 1.0))
        calls += 1
    assert calls <= 60
    caller.call(*(follows_size(draw, 1.0) for _ in range(200)))
    assert spare(caller.function.published, 1.0) <= before + 64


def test_a_refit_that_is_due_is_more_or_less_pressing(caller: Caller) -> None:
    function = caller.function
    caller.call(*[CALM] * 12)
    for i in range(3):
        function.observe(f"1800000000000-{i}", CALM)
    assert (function.refit_due(), function.haste()) == (True, Haste.NOW), "it is young"
    caller = Caller(Function("default/f", "", SETTINGS))
    caller.call(*[CALM] * 100)
    for i in range(20):
        caller.function.observe(f"1800000000000-{i}", CALM)
    assert (caller.function.refit_due(), caller.function.haste()) == (True, Haste.SOON), "it is grown"
    caller = Patient(Function("default/f", "", SETTINGS))
    caller.call(*[CALM] * 200)
    while not caller.function.refit_due():
        caller.call(CALM)
    assert (caller.function.refit_due(), caller.function.haste()) == (True, Haste.WHENEVER)
    for i, peak in enumerate((90, 240, 390)):
        caller.function.observe(f"1700000000999-{i}", sample(peak_memory_bytes=peak * MI))
    assert (caller.function.refit_due(), caller.function.haste()) == (True, Haste.SOON)
    restored = Function.restore(caller.function.state(), SETTINGS)
    assert restored.haste() is Haste.SOON


def test_no_refit_waits_for_longer_than_two_windows() -> None:
    caller = Patient(Function("default/f", "", SETTINGS))
    caller.call(*[CALM] * 220)
    refits = caller.refits
    caller.call(*[CALM] * 400)
    assert caller.refits == refits + 1


def test_three_misses_lately_are_a_drift_and_refit_at_once(caller: Caller) -> None:
    function = caller.function
    caller.call(*[CALM] * 60)
    refits, version = caller.refits, function.published.version
    ((missed, *_),) = [caller.call(sample(peak_memory_bytes=90 * MI))]
    assert missed.missed_memory is True
    assert missed.error_memory == -1.0
    assert function.published.offset == (0, 64 * MI)
    assert function.published.version > version
    caller.call(sample(peak_memory_bytes=150 * MI), sample(peak_memory_bytes=450 * MI))
    assert caller.refits == refits + 1
    assert function.published.stage == "drifted"
    assert function.published.reason == "3 of the last 15 calls needed more memory than was predicted"
    caller.call(*[sample(peak_memory_bytes=150 * MI)] * 15)
    assert function.published.stage == "modelled"


def test_what_was_before_a_drift_is_forgotten(caller: Caller) -> None:
    grown = sample(peak_memory_bytes=150 * MI)
    caller.call(*[CALM] * 150)
    caller.call(*(sample(peak_memory_bytes=p * MI) for p in (90, 150, 300)), *[grown] * 60)
    assert caller.function.published.observations < 100
    assert at(caller.function.published)[1] >= 192 * MI


def test_of_inputs_larger_than_any_since_a_drift_nothing_is_forgotten(caller: Caller) -> None:
    grown = sample(peak_memory_bytes=150 * MI)
    large = sample(size=10**7, peak_memory_bytes=300 * MI)
    caller.call(*[CALM] * 100, *[large] * 5, *[CALM] * 45)
    assert at(caller.function.published, 10**7)[1] == 320 * MI
    drifts = (sample(peak_memory_bytes=p * MI, limit_memory_bytes=0) for p in (90, 150, 600))
    caller.call(*drifts, *[grown] * 60)
    sizes = caller.function.state().window.size
    assert len(sizes) < 100
    assert sizes.count(10**7) == 5
    assert at(caller.function.published, 10**7)[1] >= 320 * MI


def test_a_false_alarm_forgets_nothing(caller: Caller) -> None:
    caller.call(*[CALM] * 150)
    caller.call(*(sample(peak_memory_bytes=p * MI) for p in (90, 150, 300)), *[CALM] * 60)
    assert caller.function.published.observations == 200


OLD = Answers(constant(400), constant(128 * MI), constant(50), (500, 192 * MI, 40))


def test_a_revision_starts_from_the_answers_of_the_one_before() -> None:
    caller = Caller(Function("default/f-00002", "default/f", SETTINGS, OLD))
    published = caller.function.published
    assert published.stage is Stage.PROFILING
    assert published.reason == "0 of 12 observations: answered like the revision before it"
    assert published.cpu.estimator == INHERITED
    assert at(published) == (400, 128 * MI, 50)
    assert caller.call(CALM) == [Scored(False, False, False, 1.0, 1.0, -0.5)]
    assert caller.function.published.version == 1_700_000_000_000
    caller.call(*[CALM] * 12)
    assert caller.function.published.stage is Stage.MODELLED
    assert at(caller.function.published) == (300, 64 * MI, 100), "its own were better"
    assert caller.function.state().inherited is None


USING = dataclasses.replace(CALM, cpu_time_ns=20_000_000)


def test_after_a_change_of_estimator_the_offset_rests_on_answers_of_the_new_one() -> None:
    plenty = Answers(constant(2000), constant(1024 * MI), constant(50), (2000, 1024 * MI, 40))
    caller, draw = Caller(Function("default/f-00002", "", SETTINGS, plenty)), random.Random(1)  # noqa: S311
    caller.call(*(follows_size(draw) for _ in range(60)))
    state = caller.function.state()
    assert state.estimators[:2] == (XGBOOST, XGBOOST)
    for i, most in enumerate((1100, 512 * MI)):
        assert state.offsets[i].raws, "there are calls to derive it from"
        assert max(state.offsets[i].raws) <= most, "the answers from before are none of these"


def test_the_offset_rests_on_no_higher_answers_than_are_served(caller: Caller) -> None:
    for milli in (1000, 300):
        caller.call(*[sample(USING, peak_cpu_milli=milli)] * SETTINGS.window)
    state = caller.function.state()
    assert state.answers.cpu_milli.values == (300,)
    assert set(state.offsets[0].raws) == {300}, "all calls met answers of 1000m"


def cpu_time(function: Function, size: int = 1000) -> int:
    return function.published.answers.cpu_time_at(size)


def test_a_cpu_time_is_answered_from_the_third_call_on(caller: Caller) -> None:
    function = caller.function
    caller.call(USING, sample(USING, cpu_time_ns=1_000_000), CALM)
    assert (cpu_time(function), function.published.cpu_time.estimator) == (0, NO_ESTIMATOR)
    version = function.published.version
    caller.call(sample(USING, cpu_time_ns=90_000_000))
    assert function.published.stage is Stage.PROFILING
    assert [cpu_time(function, size) for size in (UNKNOWN_SIZE, 0, 10**9)] == [20_000] * 3
    assert function.published.cpu_time.estimator == HISTOGRAM
    assert function.published.version > version
    assert at(function.published) == (0, 0, 0), "a loan needs more"
    (scored,) = caller.call(sample(USING, cpu_time_ns=40_000_000))
    assert scored == Scored(ratio_cpu_time=0.5)
    record = function.published.cpu_time
    assert (record.calls, record.under_predicted, record.mean_error) == (1, 1, -1.0)


def test_memory_is_not_predicted_because_a_cpu_time_is() -> None:
    caller = Caller(Function("default/f", "", SETTINGS))
    caller.call(*[USING] * 5)
    assert (cpu_time(caller.function), at(caller.function.published)) == (20_000, (0, 0, 0))
    resumed = Caller(Function("default/f", "", SETTINGS, caller.function.published.answers))
    resumed.call(USING)
    assert (cpu_time(resumed.function), at(resumed.function.published)) == (20_000, (0, 0, 0))


def test_a_cpu_time_is_scored_of_throttled_calls_and_not_of_killed_ones(caller: Caller) -> None:
    caller.call(*[USING] * 20)
    (throttled,) = caller.call(sample(THROTTLED, cpu_time_ns=10_000_000))
    assert throttled.ratio_cpu_time == 2
    (killed,) = caller.call(sample(USING, failed=True, peak_memory_bytes=511 * MI))
    (unknown,) = caller.call(CALM)
    assert (killed.ratio_cpu_time, unknown.ratio_cpu_time) == (None, None)


def test_a_cpu_time_follows_size_once_there_is_a_model(caller: Caller) -> None:
    draw = random.Random(1)  # noqa: S311
    seen = [follows_size(draw) for _ in range(100)]
    caller.call(*(sample(s, cpu_time_ns=s.duration_ns // 2) for s in seen))
    assert caller.function.published.cpu_time.estimator == XGBOOST
    assert cpu_time(caller.function, 10**3) < cpu_time(caller.function, 10**8) / 4


def test_a_revision_starts_from_the_cpu_time_of_the_one_before() -> None:
    old = dataclasses.replace(OLD, cpu_time_us=constant(7000), unknown_cpu_time_us=6000)
    function = Function("default/f-00002", "default/f", SETTINGS, old)
    assert (cpu_time(function), cpu_time(function, UNKNOWN_SIZE)) == (7000, 6000)
    assert function.published.cpu_time.estimator == INHERITED
    caller = Caller(function)
    caller.call(*[USING] * 5)
    assert cpu_time(function) == 7000
    caller.call(*[USING] * 10)
    assert cpu_time(function) == 20_000, "its own was better"


def test_above_the_largest_size_learned_from_the_answers_end(caller: Caller) -> None:
    sizes = [1000 * 2**i for i in range(10)]
    caller.call(*(sample(size=size, peak_cpu_milli=size // 1000) for size in sizes * 4))
    published = caller.function.published
    assert published.answers.largest_size == sizes[-1]
    assert published.at(10 * sizes[-1]) == published.at(sizes[-1]), "which may be borrowed"
    successor = Function("default/f-00002", "default/f", SETTINGS, published.answers_with_offset())
    assert successor.published.answers.largest_size == sizes[-1]
    caller.call(*[sample(size=10**9)] * 20)
    assert caller.function.published.answers.largest_size == 10**9


def test_without_a_known_size_the_answers_end_before_any(caller: Caller) -> None:
    caller.call(*[sample(size=UNKNOWN_SIZE)] * 20)
    assert caller.function.published.answers.largest_size == UNKNOWN_SIZE


def test_what_was_stored_without_a_largest_size_has_none_until_a_refit(caller: Caller) -> None:
    caller.call(*[CALM] * 19)
    stored = json.loads(caller.function.state().model_dump_json())
    assert stored["format"] == 4
    stored["format"] = 2
    del stored["answers"]["largest_size"], stored["published"]["answers"]["largest_size"]
    restored = Caller(Function.restore(FunctionState.model_validate_json(json.dumps(stored)), SETTINGS))
    assert restored.function.published.answers.largest_size == MAX_SIZE
    restored.function.adopt(restored.function.start_refit()())
    assert restored.function.published.answers.largest_size == 1000


def test_what_was_stored_before_there_was_a_cpu_time_is_read(caller: Caller) -> None:
    caller.call(*[CALM] * 20)
    stored = json.loads(caller.function.state().model_dump_json())
    stored["format"] = 1
    del stored["cpu_time_tally"], stored["cpu_time_estimator"], stored["published"]["cpu_time"]
    for kept in (stored["window"], stored["startups"]):
        del kept["cpu_time_ns"]
    for answers in (stored["answers"], stored["published"]["answers"]):
        del answers["cpu_time_us"], answers["unknown_cpu_time_us"]
    restored = Caller(Function.restore(FunctionState.model_validate_json(json.dumps(stored)), SETTINGS))
    assert restored.function.state() == caller.function.state()
    for i in range(3):
        assert cpu_time(restored.function) == 0
        restored.function.observe(f"1900000000000-{i}", USING)
    assert cpu_time(restored.function) == 20_000, "before the next refit"


def test_what_was_stored_without_what_answers_spare_is_read(caller: Caller) -> None:
    caller.call(*[CALM] * 40)
    stored = json.loads(caller.function.state().model_dump_json())
    stored["format"] = 3
    assert stored.pop("spare") != [[], []]
    restored = Function.restore(FunctionState.model_validate_json(json.dumps(stored)), SETTINGS)
    assert restored.state().spare == ([], [])
    assert restored.published == caller.function.published


def test_a_repeated_entry_changes_nothing(caller: Caller) -> None:
    caller.call(*[CALM] * 20)
    before = caller.function.state()
    for entry_id in ("1700000000019-0", "1700000000003-0", "0-0"):
        assert caller.function.observe(entry_id, THROTTLED) == Scored(repeated=True)
    assert caller.function.state() == before
    assert not caller.function.observe("1700000000019-1", CALM).repeated


@pytest.mark.parametrize("entry_id", ["", "5", "-5-1", "5-1-1", "a-1", "1700000000000"])
def test_an_id_that_is_none_is_refused(caller: Caller, entry_id: str) -> None:
    with pytest.raises(ValueError, match="want milliseconds-number"):
        caller.function.observe(entry_id, CALM)


def test_ids_are_ordered_as_numbers(caller: Caller) -> None:
    caller.function.observe("999-9", CALM)
    assert not caller.function.observe("999-10", CALM).repeated
    assert not caller.function.observe("1000-0", CALM).repeated


def test_what_is_observed_during_a_refit_counts(caller: Caller) -> None:
    caller.call(*[CALM] * 59)
    function = caller.function
    fitting = function.start_refit()
    for i in range(5):
        function.observe(f"1900000000000-{i}", sample(peak_cpu_milli=450))
    function.adopt(fitting())
    assert at(function.published)[0] >= 500
    assert function.refit_due() or function.published.offset[0] >= 200


def test_a_corrupt_state_is_refused(caller: Caller) -> None:
    caller.call(*[CALM] * 14)
    state = caller.function.state().model_dump(mode="json")

    def refused(**changes: Any) -> None:
        with pytest.raises(ValidationError):
            FunctionState.model_validate_json(json.dumps(state | changes))

    refused(format=5)
    refused(window=state["window"] | {"size": [1]})
    refused(observed="14")
    with pytest.raises(ValidationError, match="extra"):
        FunctionState.model_validate(caller.function.state().model_dump() | {"more": 1})


samples = st.builds(
    Sample,
    size=st.one_of(st.just(UNKNOWN_SIZE), st.integers(0, 1 << 50)),
    duration_ns=st.integers(0, 10**12),
    peak_cpu_milli=st.integers(0, 3000),
    peak_memory_bytes=st.integers(0, 3 << 30),
    limit_cpu_milli=st.sampled_from([0, 500, 1000, 3000]),
    limit_memory_bytes=st.sampled_from([0, 256 * MI, 3 << 30]),
    throttled_share=st.sampled_from([0.0, 0.04, 0.5]),
    first=st.booleans(),
    failed=st.booleans(),
    cpu_time_ns=st.one_of(st.just(0), st.integers(0, 10**12)),
)
lives = st.lists(samples, max_size=25)
choices = st.builds(
    lambda **values: Settings.model_validate(values),
    min_observations=st.integers(1, 6),
    window=st.integers(1, 30),
    refit_every=st.integers(1, 10),
    estimator=st.sampled_from(["auto", "moving-window"]),
    durations=st.sampled_from(["predicted", "unlimited"]),
)


def lived(seen: list[Sample], settings: Settings, inherited: Answers | None) -> Iterator[Function]:
    """The function after each of its calls."""
    caller = Caller(Function("default/f", "", settings, inherited))
    yield caller.function
    for observed in seen:
        caller.call(observed)
        yield caller.function


@hypothesis_settings(max_examples=10)
@given(lives, choices, st.sampled_from([None, OLD]))
def test_answers_stay_between_the_raw_one_and_the_largest_option(
    seen: list[Sample], settings: Settings, inherited: Answers | None
) -> None:
    version, before = -1, None
    for function in lived(seen, settings, inherited):
        published = function.published
        for size in (UNKNOWN_SIZE, 0, 1, 1000, 1 << 50, *(s.size for s in seen)):
            raw, answer = published.answers.at(size), published.at(size)
            for i in (0, 1):
                assert raw[i] <= answer[i] <= published.largest[i]
                assert answer[i] % (settings.cpu_step_milli, settings.memory_step_bytes)[i] == 0
            assert answer[2] >= 0
            used = [s.cpu_time_ns for s in seen if s.cpu_time_ns and not s.failed and not s.first]
            if cpu_time_us := published.answers.cpu_time_at(size):
                assert min(used) // 1000 <= cpu_time_us <= max(used) // 1000 + 1
        assert min(published.offset) >= 0
        said = (published.answers, published.offset, published.largest)
        assert published.version >= version
        if before not in (None, said):
            assert published.version > version, "what changes has a new version"
        version, before = published.version, said


@hypothesis_settings(max_examples=10)
@given(lives, lives, choices, st.sampled_from([None, OLD]))
def test_restored_it_answers_and_goes_on_the_same(
    seen: list[Sample], later: list[Sample], settings: Settings, inherited: Answers | None
) -> None:
    kept = Caller(Function("default/f", "default/c", settings, inherited))
    kept.call(*seen)
    stored = kept.function.state().model_dump_json()
    restored = Function.restore(FunctionState.model_validate_json(stored), settings)
    assert restored.state() == kept.function.state()
    assert restored.published == kept.function.published
    for i, observed in enumerate(later):
        entry_id = f"1900000000000-{i}"
        assert restored.observe(entry_id, observed) == kept.function.observe(entry_id, observed)
        assert restored.refit_due() == kept.function.refit_due()
        if kept.function.refit_due():
            kept.function.adopt(kept.function.start_refit()())
            restored.adopt(restored.start_refit()())
    assert restored.state() == kept.function.state()


@hypothesis_settings(max_examples=10)
@given(lives, choices, st.sampled_from([None, OLD]))
def test_at_rest_between_its_calls_it_answers_and_learns_the_same(
    seen: list[Sample], settings: Settings, inherited: Answers | None
) -> None:
    awake = Caller(Function("default/f", "default/c", settings, inherited))
    rested = Caller(Function("default/f", "default/c", settings, inherited))
    for observed in seen:
        rested.function.rest()
        assert rested.call(observed) == awake.call(observed)
        rested.function.rest()
        assert rested.function.refit_due() == awake.function.refit_due()
        assert rested.function.haste() == awake.function.haste()
        assert rested.function.published == awake.function.published
        assert rested.function.state() == awake.function.state()
