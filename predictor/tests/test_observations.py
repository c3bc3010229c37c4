"""How stream entries are read."""

import json
from typing import Any

import pytest
from conftest import observation
from hypothesis import given
from hypothesis import strategies as st

from libra_predictor.observations import MAX_SIZE, Observed, Useless, id_order, parse

AT_LIMIT = {"cpu_milli": 250, "memory_bytes": 250 << 20}


def entry(**changes: Any) -> dict[bytes, bytes]:
    return {b"v": b"1", b"data": json.dumps(observation(**changes)).encode()}


def test_reads_what_go_writes() -> None:
    observed = parse(entry(configuration="default/thumb", first=True, throttled_share=0.25))
    assert isinstance(observed, Observed)
    assert (observed.function, observed.configuration) == ("default/thumb-00001", "default/thumb")
    sample = observed.sample
    assert (sample.size, sample.duration_ns, sample.first) == (4096, 120_000_000, True)
    assert (sample.peak_cpu_milli, sample.peak_memory_bytes) == (250, 50 << 20)
    assert (sample.limit_cpu_milli, sample.limit_memory_bytes) == (1000, 256 << 20)
    assert (sample.throttled_share, sample.cpu_time_ns) == (0.25, 22_000_000)


def test_what_a_borrower_was_lent_is_in_the_limit() -> None:
    limits = {"limit": {"cpu_milli": 500, "memory_bytes": 128 << 20}}
    lent = {"limit_at_peak": {"cpu_milli": 1500, "memory_bytes": 0}}
    observed = parse(entry(**limits, **lent))
    assert isinstance(observed, Observed)
    assert (observed.sample.limit_cpu_milli, observed.sample.limit_memory_bytes) == (1500, 0)


@pytest.mark.parametrize("status", [200, 204, 303, 304])
def test_a_call_that_answers_without_an_error_is_learned(status: int) -> None:
    observed = parse(entry(status=status))
    assert isinstance(observed, Observed)
    assert not observed.sample.failed


def test_a_call_that_failed_at_its_memory_limit_is_told_apart() -> None:
    observed = parse(entry(status=502, peak=AT_LIMIT))
    assert isinstance(observed, Observed)
    assert observed.sample.failed
    succeeded = parse(entry(peak=AT_LIMIT))
    assert isinstance(succeeded, Observed)
    assert not succeeded.sample.failed


@pytest.mark.parametrize(
    ("fields", "reason", "problem"),
    [
        ({b"v": b"2", b"data": b"{}"}, "version", "v is b'2', want b'1'"),
        ({b"other": b"field"}, "version", "v is None, want b'1'"),
        ({b"v": b"1"}, "malformed", "data: Invalid JSON"),
        (entry(size=-2), "malformed", "data.size: Input should be greater than or equal to -1"),
        (entry(size=MAX_SIZE + 1), "malformed", "data.size: "),
        (entry(size="12"), "malformed", "data.size: Input should be a valid integer"),
        (entry(function="thumb"), "malformed", "data.function: String should match pattern"),
        (entry(function="default/.."), "malformed", "data.function: String should match pattern"),
        (entry(function="a.b/thumb"), "malformed", "data.function: String should match pattern"),
        (entry(function="default/thumb\n"), "malformed", "data.function: String should match pattern"),
        (entry(function="a/" + 600 * "b"), "malformed", "data.function: String should have at most 512"),
        (entry(throttled_share=1.5), "malformed", "data.throttled_share: "),
        (entry(alone=False), "not_alone", ""),
        (entry(status=503), "failed", ""),
        (entry(status=404, peak=AT_LIMIT), "failed", ""),
        (entry(peak={"cpu_milli": 1_000_001, "memory_bytes": 0}), "malformed", "data.peak.cpu_milli: "),
        (entry(limit_at_peak={"cpu_milli": -1, "memory_bytes": 0}), "malformed", "data.limit_at_peak.cpu_m"),
        (entry(peak={"cpu_milli": 0, "memory_bytes": 10**12 + 1}), "malformed", "data.peak.memory_bytes: "),
        (entry(duration_ns=24 * 3600 * 10**9 + 1), "malformed", "data.duration_ns: "),
        (entry(cpu_time_ns=-1), "malformed", "data.cpu_time_ns: "),
        (entry(cpu_time_ns=30 * 24 * 3600 * 10**9 + 1), "malformed", "data.cpu_time_ns: "),
    ],
)
def test_says_why_an_entry_teaches_nothing(fields: dict[bytes, bytes], reason: str, problem: str) -> None:
    useless = parse(fields)
    assert isinstance(useless, Useless)
    assert useless.reason == reason
    assert problem in useless.problem


@given(st.dictionaries(st.sampled_from([b"v", b"data", b"x"]), st.binary() | st.just(b"1")))
def test_no_bytes_are_too_strange(fields: dict[bytes, bytes]) -> None:
    assert isinstance(parse(fields), Useless)


_values: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just({})
)


@given(st.dictionaries(st.sampled_from(list(observation())), _values))
def test_no_values_are_too_strange(changes: dict[str, Any]) -> None:
    assert isinstance(parse(entry(**changes)), Observed | Useless)


@given(*[st.tuples(st.integers(0, 1 << 60), st.integers(0, 1 << 60))] * 2)
def test_ids_are_ordered_as_redis_does(a: tuple[int, int], b: tuple[int, int]) -> None:
    assert id_order(f"{a[0]}-{a[1]}") == a
    assert (id_order(f"{a[0]}-{a[1]}") < id_order(f"{b[0]}-{b[1]}")) == (a < b)
