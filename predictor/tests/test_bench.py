import math
import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from bench import exactness
from bench.learner import SETTINGS, class_model
from bench.scores import Outcome, harvested, least_constant, ordered, under_predicted, wilson
from bench.workloads import WORKLOADS, storage
from bench.zygote import Call, Reading, measure, peak_cpu_milli
from libra_predictor.estimators import ClassModel
from libra_predictor.settings import parse
from libra_predictor.tables import StepTable

_MS = 1_000_000


def readings(*points: tuple[float, float]) -> list[Reading]:
    """Readings at points of time and CPU use, both in milliseconds."""
    return [Reading(int(at * _MS), int(at * _MS), int(used * _MS)) for at, used in points]


def test_wilson_is_what_the_textbook_says() -> None:
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(10, 1000) == pytest.approx((0.00544, 0.01831), abs=1e-5)
    assert wilson(0, 0) == (0.0, 1.0)


@given(st.integers(0, 2000), st.integers(1, 2000))
def test_wilson_contains_the_share_and_mirrors(successes: int, count: int) -> None:
    successes = min(successes, count)
    low, high = wilson(successes, count)
    assert 0 <= low <= successes / count + 1e-12
    assert successes / count - 1e-12 <= high <= 1
    mirrored = wilson(count - successes, count)
    assert mirrored == pytest.approx((1 - high, 1 - low))


def test_harvest_counts_only_what_is_lent_safely() -> None:
    outcomes = [
        Outcome(allocation=1000, answer=400, needed=300),  # lends 600 of 700
        Outcome(allocation=1000, answer=200, needed=500),  # lacks 300: lends nothing of 500
        Outcome(allocation=1000, answer=1200, needed=1000),  # a borrower
        Outcome(allocation=1000, answer=0, needed=200),  # not predicted: nothing of 800
    ]
    assert harvested(outcomes).value == pytest.approx(600 / 2000)
    assert harvested(outcomes, penalty=True).value == pytest.approx(300 / 2000)
    assert under_predicted(outcomes).value == pytest.approx(1 / 4)


def test_by_time_a_call_counts_for_as_long_as_it_took() -> None:
    outcomes = [
        Outcome(allocation=1000, answer=500, needed=500, seconds=3),
        Outcome(allocation=1000, answer=1000, needed=500, seconds=1),
    ]
    assert harvested(outcomes).value == pytest.approx(1 / 2)
    assert harvested(outcomes, by_time=True).value == pytest.approx(3 / 4)


def test_calls_after_one_training_are_not_independent() -> None:
    def trained(seed: int, answer: int) -> list[Outcome]:
        return [Outcome(2000, answer, 1000, function="f", seed=seed) for _ in range(100)]

    alike = [*trained(1, 1000), *trained(2, 1000), *trained(3, 1000)]
    assert (harvested(alike).low, harvested(alike).high) == (1, 1)
    apart = [*trained(1, 1000), *trained(2, 1000), *trained(3, 1900), *trained(4, 900)]
    share = harvested(apart)
    assert share.value == pytest.approx(0.525)
    assert share.low < 0.2, "the third training or the fourth, thrice"
    assert share.high > 0.9
    assert under_predicted(apart).low == 0
    assert under_predicted(apart).high >= 0.5


def test_nothing_to_harvest_is_all_of_it() -> None:
    share = harvested([Outcome(allocation=100, answer=100, needed=100)])
    assert (share.value, share.low, share.high) == (1.0, 1.0, 1.0)


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=1, max_size=30))
def test_nobody_harvests_more_than_an_oracle(calls: list[tuple[int, int]]) -> None:
    outcomes = [Outcome(allocation=20, answer=answer, needed=needed) for needed, answer in calls]
    assert harvested(outcomes, penalty=True).value <= harvested(outcomes).value <= 1
    oracle = [Outcome(o.allocation, o.needed, o.needed) for o in outcomes]
    assert harvested(oracle).value == pytest.approx(1)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.floats(0, 0.5))
def test_the_least_constant_misses_no_more_than_it_may(needed: list[int], missed: float) -> None:
    outcomes = [Outcome(50, 0, n) for n in needed]
    constant = least_constant(outcomes, missed)
    assert sum(n > constant for n in needed) <= math.floor(missed * len(needed))
    assert sum(n >= constant for n in needed) > math.floor(missed * len(needed))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=20))
def test_pairs_in_order_are_counted(calls: list[tuple[int, int]]) -> None:
    said = np.array([s for s, _ in calls], dtype=np.float64)
    used = np.array([u for _, u in calls], dtype=np.float64)
    pairs = [(a, b) for a in calls for b in calls if a[1] < b[1]]
    right = sum(1.0 if a[0] < b[0] else 0.5 if a[0] == b[0] else 0.0 for a, b in pairs)
    assert ordered(said, used) == pytest.approx(right / len(pairs) if pairs else 1)


def test_peak_of_a_short_call_is_over_all_of_it() -> None:
    assert peak_cpu_milli(readings((0, 0), (10, 8), (50, 25))) == 500
    assert peak_cpu_milli(readings((0, 0), (5, 5))) == 200  # over 25 ms


def test_peak_of_a_long_call_is_that_of_its_busiest_window() -> None:
    idle_then_busy = readings((0, 0), (200, 20), *((200 + i, 20 + 2 * i) for i in range(4, 104, 4)))
    assert peak_cpu_milli(idle_then_busy) == pytest.approx(2000, abs=30)


def test_peak_never_credits_one_thread_with_more_than_one_cpu() -> None:
    rng = random.Random(1)  # noqa: S311
    at, made = 0, []
    for _ in range(200):
        early, late = rng.randrange(40_000), rng.randrange(40_000)
        made.append(Reading(at - early, at + late, at))
        at += 4 * _MS + rng.randrange(3 * _MS)
    assert peak_cpu_milli(made) <= 1000


@pytest.fixture(scope="module")
def _storage() -> Iterator[None]:
    os.environ[storage.ADDRESS] = str(storage.serve())
    yield
    del os.environ[storage.ADDRESS]


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.usefixtures("_storage")
def test_function_answers_and_always_the_same(name: str) -> None:
    workload = WORKLOADS[name]
    body = workload.make(random.Random(3))  # noqa: S311
    assert body == workload.make(random.Random(3))  # noqa: S311
    assert body != workload.make(random.Random(4))  # noqa: S311
    answer = workload.run(body)
    assert answer > 0
    assert workload.run(body) == answer


def test_what_is_measured_is_what_is_served() -> None:
    manifest = Path(__file__).parents[2] / "manifests/base/predictor/inferenceservice.yaml"
    (container,) = yaml.safe_load(manifest.read_text())["spec"]["predictor"]["containers"]
    options = [o for o in container["args"] if not o.startswith("--redis-")]
    assert parse(options, {e["name"]: e["value"] for e in container["env"]}) == SETTINGS


def growing() -> list[Call]:
    """Calls whose need of CPU goes from 100m to 1000m as the input grows."""
    return [Call(1000 + i, 50_000_000, 1_000_000 * i, 10 * i, 1 << 24, 0) for i in range(1, 101)]


def test_models_that_are_measured_know_the_size() -> None:
    model = class_model(growing(), 0)
    assert model.most_probable(np.array([1003, 1055, 1098])).tolist() == [100, 600, 1000]


def test_a_table_that_is_off_by_a_byte_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {1: {"growing": growing()}}
    assert exactness.compared(calls, 100, 4000, print).mismatches == 0
    exact_table = ClassModel.exact_table

    def off(model: ClassModel, quantile: float) -> StepTable:
        table = exact_table(model, quantile)
        return StepTable(tuple(t + 1 for t in table.thresholds), table.values)

    monkeypatch.setattr(ClassModel, "exact_table", off)
    assert exactness.compared(calls, 100, 4000, print).mismatches > 0


def test_both_kinds_of_functions_are_measured() -> None:
    assert sum(w.size_related for w in WORKLOADS.values()) >= 3
    assert sum(not w.size_related for w in WORKLOADS.values()) >= 3


def test_a_call_is_measured(tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(WORKLOADS["compression"].make(random.Random(3)))  # noqa: S311
    call = measure(WORKLOADS["compression"], body)
    assert call.size == body.stat().st_size
    assert call.answer == WORKLOADS["compression"].run(body.read_bytes())
    assert call.duration_ns > 0
    assert 0 < call.cpu_milli <= 1000
    assert 0 < call.cpu_time_ns <= call.duration_ns + _MS
    assert call.memory_bytes > call.size


def test_a_failing_call_is_said_to_fail(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    body = tmp_path / "body"
    body.write_bytes(b"no picture")
    with pytest.raises(RuntimeError, match="thumbnailer"):
        measure(WORKLOADS["thumbnailer"], body)
    assert "UnidentifiedImageError" in capfd.readouterr().err
