import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from libra_predictor import labels
from libra_predictor.choice import Fit, fit, missable
from libra_predictor.estimators import HISTOGRAM, INHERITED, MOVING_WINDOW, NO_ESTIMATOR, XGBOOST
from libra_predictor.labels import Resource, option
from libra_predictor.observations import MAX_DURATION_MS, MAX_SIZE, UNKNOWN_SIZE, Sample
from libra_predictor.published import Answers
from libra_predictor.tables import StepTable, constant

MI = 1 << 20
LARGEST = (2000, 1 << 30)
RESOURCES = (Resource(labels.cpu, 100, LARGEST[0]), Resource(labels.memory, 64 * MI, LARGEST[1]))

Draw = Callable[[random.Random], Sample]


def related(draw: random.Random) -> Sample:
    size = int(10 ** draw.uniform(3, 8))
    demand = (size / 1e8) ** 0.4 * draw.uniform(0.98, 1.02)
    return Sample(
        size,
        int(1e9 * demand),
        int(100 + 900 * demand),
        int((40 + 400 * demand) * MI),
        *LARGEST,
        0.0,
        cpu_time_ns=int(5e8 * demand),
    )


def unrelated(draw: random.Random) -> Sample:
    size, demand = int(10 ** draw.uniform(3, 8)), draw.betavariate(2, 4)
    return Sample(
        size,
        int(1e9 * demand),
        int(100 + 900 * demand),
        int((40 + 400 * demand) * MI),
        *LARGEST,
        0.0,
        cpu_time_ns=int(5e8 * demand),
    )


def drawn(kind: Draw, count: int = 200, seed: int = 1) -> list[Sample]:
    draw = random.Random(seed)  # noqa: S311
    return [kind(draw) for _ in range(count)]


def fitted(samples: Sequence[Sample], estimator: str = "auto", inherited: Answers | None = None) -> Fit:
    return fit(samples, RESOURCES, LARGEST, estimator, inherited)


def test_a_function_that_follows_size_gets_models_and_passes_the_gate() -> None:
    learned = fitted(drawn(related))
    assert learned.estimators == (XGBOOST,) * 3
    assert learned.gate is not None
    assert min(learned.gate) > 0.8
    unseen = drawn(related, 1000, seed=2)
    short = [learned.answers.at(s.size)[0] < s.peak_cpu_milli for s in unseen]
    assert sum(short) <= 0.02 * len(unseen)
    spared = sum(2000 - learned.answers.at(s.size)[0] for s in unseen)
    assert spared > 0.9 * sum(2000 - option(s.peak_cpu_milli, 100) for s in unseen)


@pytest.mark.parametrize("seed", range(5))
def test_models_that_an_offset_makes_safe_are_not_given_up_for_a_constant(seed: int) -> None:
    def noisy(draw: random.Random) -> Sample:
        sample = related(draw)
        peak = int(sample.peak_cpu_milli * draw.uniform(0.8, 1.2))
        return replace(sample, peak_cpu_milli=peak)

    assert fitted(drawn(noisy, 100, seed)).estimators[0] == XGBOOST


def test_a_function_that_does_not_follow_size_fails_the_gate() -> None:
    learned = fitted(drawn(unrelated))
    assert learned.gate is not None
    assert max(learned.gate) < 0.5
    assert learned.estimators[2] == HISTOGRAM
    unseen = drawn(unrelated, 1000, seed=2)
    short = [learned.answers.at(s.size)[0] < s.peak_cpu_milli for s in unseen]
    assert sum(short) <= 0.04 * len(unseen)


@pytest.mark.parametrize("kind", [related, unrelated])
def test_a_setting_forces_a_moving_window(kind: Draw) -> None:
    old = Answers(constant(100), constant(64 * MI), constant(1), (100, 64 * MI, 1))
    assert fitted(drawn(kind, 40), MOVING_WINDOW, old).estimators == (MOVING_WINDOW,) * 3


def called(*peaks: int, size: int = 1000, limit: int = 1000, throttled: float = 0.0) -> list[Sample]:
    """Calls that last as many milliseconds as they use millicores."""
    return [
        Sample(size, peak * 10**6, peak, 50 * MI, limit, 512 * MI, throttled_share=throttled)
        for peak in peaks
    ]


def windowed(samples: Sequence[Sample]) -> tuple[int, int, int]:
    """The answer of a moving window, which is one for every size."""
    answers = fitted(samples, MOVING_WINDOW).answers
    (answer,) = {answers.at(size) for size in (UNKNOWN_SIZE, 0, *(s.size for s in samples), 1 << 50)}
    return answer


def test_a_moving_window_is_of_the_last_five_calls() -> None:
    assert windowed(called(890, 150, 250, 190, 150, 150)) == (300, 64 * MI, 150)
    assert windowed(called(150)) == (200, 64 * MI, 150)


@pytest.mark.parametrize("kind", [related, unrelated])
def test_a_moving_window_knows_no_sizes(kind: Draw) -> None:
    samples = drawn(kind, 40)
    sizes = [s.size for s in reversed(samples)]
    others = [replace(s, size=size) for s, size in zip(samples, sizes, strict=True)]
    throttled = [replace(s, limit_cpu_milli=s.peak_cpu_milli, throttled_share=0.3) for s in samples]
    throttled_others = [replace(s, size=o.size) for s, o in zip(throttled, others, strict=True)]
    assert windowed(samples) == windowed(others)
    assert windowed(throttled) == windowed(throttled_others)


def test_after_a_call_that_a_lowered_limit_throttled_a_moving_window_lends_nothing() -> None:
    calm, starved = called(*[150] * 12), called(290, limit=300, throttled=0.4)
    assert windowed([*calm, *starved])[0] == 1000
    assert windowed([*calm, *called(290, size=9, limit=300, throttled=0.4), *starved])[0] == 1000
    # The next call shows what is needed.
    assert windowed([*calm, *starved, *called(640)])[0] == 700
    # A call throttled at its full limit is given more, as always.
    assert windowed([*calm, *called(990, throttled=0.4)])[0] == 2000


def test_answers_end_where_what_they_were_learned_from_does() -> None:
    largest = max(s.size for s in drawn(related))
    assert fitted(drawn(related)).answers.largest_size == largest
    assert fitted(drawn(unrelated)).answers.largest_size == max(s.size for s in drawn(unrelated))
    assert fitted(drawn(related), MOVING_WINDOW).answers.largest_size == MAX_SIZE, "it knows no sizes"
    # Inherited answers end where those of the previous revision did, at least.
    few = drawn(related)[:12]
    before = replace(fitted(drawn(related)).answers, largest_size=10 * largest)
    learned = fitted(few, inherited=before)
    assert learned.estimators[:2] == (INHERITED, INHERITED)
    assert learned.answers.largest_size == 10 * largest
    # They go on where calls have shown that they are right for larger inputs, too.
    learned = fitted(few, inherited=replace(before, largest_size=min(s.size for s in few)))
    assert learned.estimators[:2] == (INHERITED, INHERITED)
    assert learned.answers.largest_size == max(s.size for s in few)


@pytest.mark.parametrize("seed", range(4))
def test_a_duration_that_size_does_not_tell_is_low(seed: int) -> None:
    learned = fitted(drawn(unrelated, seed=seed))
    assert learned.estimators[2] == HISTOGRAM
    later = drawn(unrelated, seed=100 + seed)
    sooner = sum(1e6 * learned.answers.at(s.size)[2] > s.duration_ns for s in later)
    assert sooner <= 0.12 * len(later), "a fifth of these and more would be at the quantile of a model"


@pytest.mark.parametrize("seed", range(4))
def test_a_duration_that_size_tells_is_a_model_s_however_noisy(seed: int) -> None:
    """Scored at the quantile that it serves, the histogram would win, and leave next to no time to lend."""

    def noisy(draw: random.Random) -> Sample:
        sample = related(draw)
        return replace(sample, duration_ns=int(sample.duration_ns * draw.lognormvariate(0, 0.8)))

    learned = fitted(drawn(noisy, seed=seed))
    assert learned.estimators[2] == XGBOOST
    later = drawn(noisy, seed=100 + seed)
    offered = sum(min(1e6 * learned.answers.at(s.size)[2], s.duration_ns) for s in later)
    assert offered >= 0.2 * sum(s.duration_ns for s in later)


def test_unlimited_durations_are_of_every_estimator() -> None:
    for estimator in ("auto", MOVING_WINDOW):
        predicted = fitted(drawn(related, 40), estimator)
        unlimited = fit(drawn(related, 40), RESOURCES, LARGEST, estimator, None, "unlimited")
        assert unlimited.estimators == (*predicted.estimators[:2], "unlimited")
        for size in (UNKNOWN_SIZE, 0, 10**6):
            assert unlimited.answers.at(size) == (*predicted.answers.at(size)[:2], MAX_DURATION_MS)


def test_without_a_known_size_there_are_only_histograms() -> None:
    samples = [Sample(UNKNOWN_SIZE, 10**8, 100 * i, 50 * MI, *LARGEST, 0.0) for i in range(1, 13)]
    learned = fitted(samples)
    assert learned.estimators == (HISTOGRAM,) * 3
    assert learned.answers.unknown == (1200, 64 * MI, 100)
    assert learned.answers.at(5) == learned.answers.unknown
    assert learned.gate is None


def test_answers_of_the_revision_before_stay_until_its_own_are_better() -> None:
    old = fitted(drawn(related)).answers
    assert INHERITED in fitted(drawn(related, 12, seed=3), inherited=old).estimators
    too_much = Answers(constant(2000), constant(1 << 30), constant(100_000), (2000, 1 << 30, 100_000))
    assert INHERITED not in fitted(drawn(related, seed=3), inherited=too_much).estimators
    too_little = Answers(constant(100), constant(64 * MI), constant(1), (100, 64 * MI, 1))
    assert fitted(drawn(related, seed=3), inherited=too_little).estimators == (XGBOOST,) * 3


def test_answers_of_a_revision_that_was_not_learned_are_not_kept() -> None:
    unlearned = Answers(constant(0), constant(0), constant(0), (0, 0, 0))
    learned = fitted([Sample(1000, 10**9, 290, 50 * MI, *LARGEST, 0.0)] * 12, inherited=unlearned)
    assert learned.answers.at(1000)[:2] == (300, 64 * MI)
    assert learned.answers.unknown[:2] == (300, 64 * MI)
    assert INHERITED not in learned.estimators


def test_one_sample_is_enough() -> None:
    (only,) = samples = drawn(related, 1)
    learned = fitted(samples)
    assert learned.answers.at(only.size)[:2] == (
        option(only.peak_cpu_milli, 100),
        option(only.peak_memory_bytes, 64 * MI),
    )


def test_a_demand_that_was_not_seen_is_tried_at_once() -> None:
    calm = drawn(related, 100)
    throttled = Sample(10**8, 10**9, 1000, 200 * MI, 1000, 1 << 30, 0.5)
    learned = fitted([*calm, throttled])
    assert learned.censored == 1
    both = Sample(10**8, 10**9, 1000, 1 << 30, 1000, 1 << 30, 0.5)
    assert fitted([*calm, both]).censored == 1, "it is one call"
    assert learned.answers.at(10**8)[0] == 2000
    assert learned.answers.at(10**9)[0] == 2000
    assert learned.answers.at(10**3)[0] < 500, "smaller inputs are not concerned"
    assert learned.answers.unknown[0] == 2000
    seen = Sample(10**8, 10**9, 1150, 200 * MI, 2000, 1 << 30, 0.0)
    assert fitted([*calm, throttled, seen]).answers.unknown[0] <= 1200


def test_held_out_answers_have_not_learned_what_they_answer() -> None:
    samples = [*drawn(unrelated, 99), Sample(1, 10**9, 1900, 50 * MI, *LARGEST, 0.0)]
    learned = fitted(samples)
    assert learned.held_out[0][99] < 1900
    sizes = [s.size for s in samples]
    beyond = set(range(100)) - set(learned.held_out[0])
    assert min(sizes[i] for i in beyond) > max(sizes[i] for i in learned.held_out[0]), (
        "what is larger than a half"
    )
    assert len(beyond) <= 10


def test_one_slow_call_does_not_hide_that_size_tells_the_duration() -> None:
    draw = random.Random(1)  # noqa: S311
    sizes = [draw.randrange(1000, 1_000_000) for _ in range(199)]
    samples = [Sample(size, 500 * size, 500, 50 * MI, *LARGEST, 0.0) for size in sizes]
    slow = Sample(5000, 3 * 10**9, 500, 50 * MI, *LARGEST, 0.0)
    learned = fitted([*samples[:100], slow, *samples[100:]])
    assert learned.gate is not None
    assert missable(learned.gate[2]) == missable(1.0), f"R² is {learned.gate[2]}"


def test_an_alternating_demand_is_in_both_halves() -> None:
    large = Sample(10**6, 10**9, 900, 50 * MI, *LARGEST, 0.0)
    small = Sample(10**3, 10**7, 100, 50 * MI, *LARGEST, 0.0)
    learned = fitted([large, small] * 20)
    assert learned.estimators[0] == XGBOOST
    assert learned.answers.cpu_milli == StepTable((10**3 + 1,), (100, 900))


def test_a_cpu_time_that_follows_size_is_a_model_s_and_another_the_median() -> None:
    learned = fitted(drawn(related))
    assert learned.cpu_time_estimator == XGBOOST
    for s in drawn(related, 200, seed=2):
        assert 0.5 < 1000 * learned.answers.cpu_time_at(s.size) / s.cpu_time_ns < 2
    samples = drawn(unrelated)
    learned = fitted(samples)
    assert learned.cpu_time_estimator == HISTOGRAM
    middle = sorted(s.cpu_time_ns for s in samples)[99:101]
    assert {learned.answers.cpu_time_at(size) for size in (UNKNOWN_SIZE, 0, 1 << 40)} == {
        round(sum(middle) / 2000)
    }


def test_a_cpu_time_is_learned_from_throttled_calls_as_from_others() -> None:
    samples = drawn(related)
    throttled = [replace(s, duration_ns=9 * s.duration_ns, throttled_share=0.9) for s in samples]
    calm, slow = fitted(samples).answers, fitted(throttled).answers
    assert (calm.cpu_time_us, calm.unknown_cpu_time_us) == (slow.cpu_time_us, slow.unknown_cpu_time_us)


@pytest.mark.parametrize("estimator", ["auto", MOVING_WINDOW])
def test_a_cpu_time_that_few_calls_tell_is_not_predicted(estimator: str) -> None:
    unknown = [replace(s, cpu_time_ns=0) for s in drawn(related, 40)]
    told = drawn(related, 3, seed=2)
    for samples in (unknown, [*unknown, *told[:2]]):
        learned = fitted(samples, estimator)
        assert learned.cpu_time_estimator == NO_ESTIMATOR
        assert {learned.answers.cpu_time_at(size) for size in (UNKNOWN_SIZE, 0, 10**9)} == {0}
    enough = fitted([*unknown, *told], estimator)
    assert enough.cpu_time_estimator != NO_ESTIMATOR
    assert enough.answers.unknown_cpu_time_us == sorted(round(s.cpu_time_ns / 1000) for s in told)[1]


@pytest.mark.parametrize("kind", [related, unrelated])
def test_a_setting_forces_the_estimator_of_the_cpu_time(kind: Draw) -> None:
    old = Answers(constant(100), constant(64 * MI), constant(1), (100, 64 * MI, 1), constant(9), 9)
    samples = drawn(kind, 40)
    learned = fitted(samples, MOVING_WINDOW, old)
    assert learned.cpu_time_estimator == MOVING_WINDOW
    lately = sorted(s.cpu_time_ns for s in samples[-5:])
    assert learned.answers.cpu_time_at(0) == round(lately[2] / 1000)


def test_the_cpu_time_of_the_revision_before_stays_until_its_own_is_better() -> None:
    old = fitted(drawn(related)).answers
    assert fitted(drawn(related, 12, seed=3), inherited=old).cpu_time_estimator == INHERITED
    unknown = [replace(s, cpu_time_ns=0) for s in drawn(related, 40, seed=3)]
    learned = fitted(unknown, inherited=old)
    assert (learned.cpu_time_estimator, learned.answers.cpu_time_us) == (INHERITED, old.cpu_time_us)
    wrong = replace(old, cpu_time_us=constant(9), unknown_cpu_time_us=9)
    assert fitted(drawn(related, seed=3), inherited=wrong).cpu_time_estimator == XGBOOST
    none = replace(old, cpu_time_us=constant(0), unknown_cpu_time_us=0)
    assert fitted(unknown, inherited=none).cpu_time_estimator == NO_ESTIMATOR


def test_a_half_without_a_known_size_is_no_obstacle() -> None:
    sized = drawn(related, 4)
    unsized = [Sample(UNKNOWN_SIZE, 10**8, 100 * i, 50 * MI, *LARGEST, 0.0) for i in range(1, 5)]
    halves = [sized.pop() if i.bit_count() % 2 else unsized.pop() for i in range(8)]
    assert fitted(halves).answers.at(UNKNOWN_SIZE)[0] >= 400
