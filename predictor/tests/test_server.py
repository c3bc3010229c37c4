"""The real server process against a real Redis."""

import json
from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import pytest
from conftest import STREAM, WAIT_SECONDS, PredictorServer, RedisServer, eventually

from libra_predictor.store import FUNCTIONS

MODEL, FUNCTION = "default.thumb-00001", "default/thumb-00001"

LEAST = 12  # observations of a function that has a model; with no more it is fitted once

Start = Callable[..., PredictorServer]


def observe_growing(redis_server: RedisServer, count: int = LEAST, **changes: Any) -> None:
    """Records calls of a function that needs more of everything the larger its input is."""
    for i in range(count):
        redis_server.observe(
            size=1000 * 2 ** (i % 10),
            duration_ns=(20 + 10 * (i % 10)) * 1_000_000,
            peak={"cpu_milli": 120 + 80 * (i % 10), "memory_bytes": (40 + i % 10) << 20},
            cpu_time_ns=700_000 * 2 ** (i % 10),
            **changes,
        )


def test_answers_what_was_observed_and_carries_the_tables(
    redis_server: RedisServer, start_predictor: Start
) -> None:
    redis_server.start()
    observe_growing(redis_server)
    predictor = start_predictor()
    predictor.gets_ready()

    small, large = predictor.prediction(MODEL, 1000), predictor.prediction(MODEL, 512_000)
    assert 200 <= small["cpu_milli"][0] < large["cpu_milli"][0]
    offset, largest = [*small["offset"], 0, 0], [*small["largest"], 1 << 62, 1 << 62]
    assert large["cpu_milli"] == [900], "more was never needed"
    assert small["memory_bytes"] == large["memory_bytes"] == [64 << 20]
    assert small["duration_ms"][0] < large["duration_ms"][0] <= 110
    assert small["cpu_time_us"][0] < large["cpu_time_us"][0] <= 358_400
    assert small["unknown"] == [900, 64 << 20, large["unknown"][2]]
    assert small["unknown_cpu_time_us"] == predictor.prediction(MODEL, -1)["cpu_time_us"] == [8_400]
    assert predictor.prediction(MODEL, -1)["cpu_milli"] == [900]
    for i, result in enumerate(("cpu_milli", "memory_bytes", "duration_ms", "cpu_time_us")):
        thresholds, values = small[f"{result}_thresholds"], small[f"{result}_values"]
        for size in (0, 999, 1000, 1001, 30_000, 512_000, 1 << 50):
            answer = predictor.prediction(MODEL, size)[result]
            assert answer == [min(values[bisect_right(thresholds, size)] + offset[i], largest[i])]
    assert predictor.stop() == 0


def test_the_answer_is_the_same_after_a_crash(redis_server: RedisServer, start_predictor: Start) -> None:
    redis_server.start()
    observe_growing(redis_server)
    before = start_predictor()
    before.gets_ready()
    answer = before.prediction(MODEL)
    eventually("what was learned is saved", lambda: redis_server.client.hexists(FUNCTIONS, FUNCTION) or None)
    before.process.kill()
    before.process.wait()

    after = start_predictor()
    after.gets_ready()
    assert after.infer(MODEL)[0] == 200, "a server that is ready has what was recorded"
    assert after.prediction(MODEL) == answer


def test_follows_new_observations_and_raises_the_version(
    redis_server: RedisServer, start_predictor: Start
) -> None:
    redis_server.start()
    predictor = start_predictor()
    predictor.gets_ready()
    status, answer = predictor.infer(MODEL)
    assert status == 404
    assert answer["error"].startswith("function default/thumb-00001 is not known: use the user allocation")

    observe_growing(redis_server, LEAST - 1)
    observe_growing(redis_server, function="default/other-00001")
    predictor.prediction("default.other-00001")
    status, answer = predictor.infer(MODEL)
    assert status == 200
    assert answer["parameters"]["stage"] == "profiling"
    assert "11 of 12 observations" in answer["parameters"]["reason"]
    assert [output["data"] for output in answer["outputs"][:4]] == [[0], [0], [0], [11_200]]

    observe_growing(redis_server, count=1)
    first = predictor.prediction(MODEL, 512_000)
    for _ in range(3):
        redis_server.observe(size=512_000, peak={"cpu_milli": 910, "memory_bytes": 130 << 20})

    def second() -> dict[str, Any] | None:
        answer = predictor.prediction(MODEL, 512_000)
        return answer if answer["memory_bytes"] == [192 << 20] else None

    assert int(eventually("the new peak is answered", second)["version"]) > int(first["version"])

    metrics = predictor.ask("GET", "/metrics")[1].decode()

    def total(name: str) -> float:
        return sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(name + "{"))

    compared = total("libra_predictor_calls_total")
    assert total("libra_predictor_short_count") == total("libra_predictor_spare_count") == compared > 0
    assert total("libra_predictor_short_sum") > 0, "one was answered too low"
    # All but the first three of both functions: the twelve of each were scored while they were profiled.
    assert f"libra_predictor_cpu_time_answered_count {2 * (LEAST - 3) + 3:.1f}\n" in metrics


def test_what_is_no_evidence_is_counted_and_skipped(
    redis_server: RedisServer, start_predictor: Start
) -> None:
    redis_server.start()
    redis_server.client.xadd(STREAM, {"v": "2", "data": "{}"}, id="1-7")
    redis_server.client.xadd(STREAM, {"v": "1", "data": "{"})
    redis_server.client.xadd(STREAM, {"other": "field"})
    redis_server.observe(size=-2)
    redis_server.observe(size="12")
    redis_server.observe(function="no-namespace")
    for _ in range(20):
        redis_server.observe(alone=False)
        redis_server.observe(status=503)
    predictor = start_predictor()
    predictor.gets_ready()

    assert predictor.infer(MODEL)[0] == 404
    log = predictor.log()
    assert f"entry 1-7 of {STREAM} skipped: v is b'2', want b'1'" in log
    assert "data.size: Input should be greater than or equal to -1" in log
    assert "data.function: String should match pattern" in log
    assert log.count("skipped") == 6
    metrics = predictor.ask("GET", "/metrics")[1].decode()
    for line in (
        "libra_predictor_observations_read_total 46.0",
        'libra_predictor_observations_skipped_total{reason="version"} 2.0',
        'libra_predictor_observations_skipped_total{reason="malformed"} 4.0',
        'libra_predictor_observations_skipped_total{reason="not_alone"} 20.0',
        'libra_predictor_observations_skipped_total{reason="failed"} 20.0',
        "libra_predictor_redis_up 1.0",
    ):
        assert line in metrics.splitlines()


def test_is_not_ready_before_redis_was_read(redis_server: RedisServer, start_predictor: Start) -> None:
    predictor = start_predictor()
    predictor.listens()
    assert not predictor.is_ready()
    eventually(
        "the log says so", lambda: f"Redis at {redis_server.address} is away" in predictor.log() or None
    )

    redis_server.start()
    predictor.gets_ready()


def test_serves_what_it_has_while_redis_is_away(redis_server: RedisServer, start_predictor: Start) -> None:
    redis_server.start()
    observe_growing(redis_server)
    predictor = start_predictor()
    predictor.gets_ready()
    before = predictor.prediction(MODEL)

    redis_server.stop()
    eventually("the log says so", lambda: "is away" in predictor.log() or None)
    assert predictor.is_ready()
    assert predictor.prediction(MODEL) == before

    redis_server.start()
    observe_growing(redis_server, 12, function="default/other-00001")
    predictor.prediction("default.other-00001")
    assert f"Redis at {redis_server.address} is back" in predictor.log()
    assert predictor.prediction(MODEL) == before


def test_drops_the_function_not_observed_for_longest(
    redis_server: RedisServer, start_predictor: Start
) -> None:
    redis_server.start()
    predictor = start_predictor()
    for revision in ("a-1", "b-1", "c-1"):
        observe_growing(redis_server, function=f"default/{revision}")
    predictor.gets_ready()
    for revision in ("a-1", "b-1", "c-1"):
        predictor.prediction(f"default.{revision}")

    redis_server.observe(function="default/a-1")
    redis_server.observe(function="default/d-1")
    eventually("default/b-1 is dropped", lambda: predictor.infer("default.b-1")[0] == 404 or None)
    assert predictor.infer("default.a-1")[0] == 200
    assert predictor.infer("default.c-1")[0] == 200


def test_serves_what_comes_and_goes(redis_server: RedisServer, start_predictor: Start) -> None:
    predictor = start_predictor("--max-functions", "1")
    predictor.listens()
    assert predictor.infer(MODEL) == (
        404,
        {
            "error": "function default/thumb-00001 is not known: use the user allocation; this"
            " replica has not read its store yet"
        },
    )
    redis_server.start()
    predictor.gets_ready()

    observe_growing(redis_server)
    predictor.prediction(MODEL)
    observe_growing(redis_server, 1, function="default/other-00001")
    eventually("the other takes its place", lambda: predictor.infer(MODEL)[0] == 404 or None)
    assert predictor.ask("GET", "/libra/v1/functions/default/thumb-00001")[0] == 404


def test_a_port_that_is_taken_ends_it(redis_server: RedisServer, start_predictor: Start) -> None:
    redis_server.start()
    first = start_predictor()
    first.gets_ready()
    assert start_predictor("--http-port", str(first.port)).process.wait(WAIT_SECONDS) != 0
    assert first.is_ready()


@pytest.fixture
def predictor(redis_server: RedisServer, start_predictor: Start) -> PredictorServer:
    redis_server.start()
    observe_growing(redis_server)
    server = start_predictor()
    server.gets_ready()
    return server


def test_refuses_what_is_no_size(predictor: PredictorServer) -> None:
    number = 'data of input "size" is {}: want one whole number of bytes from 0 to 1125899906842624'
    tensor = 'want one input "size" of datatype INT64 and shape [1]'
    for changes, error in (
        ({"data": [-5]}, number.format("[-5]")),
        ({"data": [(1 << 50) + 1]}, number.format("[1125899906842625]")),
        ({"data": [1 << 70]}, number.format("[1180591620717411303424]")),
        ({"data": [1.5]}, number.format("[1.5]")),
        ({"data": [True]}, number.format("[True]")),
        ({"data": ["7"]}, number.format("['7']")),
        ({"data": [1, 2]}, number.format("[1, 2]")),
        ({"data": []}, number.format("[]")),
        ({"shape": [1, 1]}, tensor),
        ({"datatype": "FP64"}, tensor),
        ({"name": "bytes"}, tensor),
    ):
        status, answer = predictor.infer(MODEL, **changes)
        assert status == 400, changes
        assert error in answer["error"], changes
    assert predictor.ask("POST", f"/v2/models/{MODEL}/infer", {"inputs": []})[0] == 400
    assert "Traceback" not in predictor.log()


def test_describes_its_models(predictor: PredictorServer) -> None:
    assert json.loads(predictor.ask("GET", "/v2/models")[1]) == {"models": [MODEL]}
    described = json.loads(predictor.ask("GET", f"/v2/models/{MODEL}")[1])
    assert described["inputs"] == [{"name": "size", "datatype": "INT64", "shape": [1]}]
    assert {"name": "unknown", "datatype": "INT64", "shape": [3]} in described["outputs"]
