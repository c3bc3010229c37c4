import asyncio
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kserve import InferInput, InferRequest
from kserve.errors import InvalidInput
from kserve.model import InferenceVerb
from kserve.protocol.infer_type import RequestedOutput
from published_server import MODELLED, PROFILED

from libra_predictor.model import FunctionModel, function_name, model_name
from libra_predictor.observations import MAX_SIZE, UNKNOWN_SIZE
from libra_predictor.published import Answers, Published, Record, Stage
from libra_predictor.tables import StepTable

SIZES = st.one_of(st.integers(UNKNOWN_SIZE, 70_000), st.integers(UNKNOWN_SIZE, MAX_SIZE))
AMOUNTS = st.integers(0, 1 << 33)


@st.composite
def tables(draw: st.DrawFn) -> StepTable:
    thresholds = sorted(draw(st.sets(st.integers(0, 60_000), max_size=4)))
    values = draw(st.lists(AMOUNTS, min_size=len(thresholds) + 1, max_size=len(thresholds) + 1))
    return StepTable(tuple(thresholds), tuple(values))


@st.composite
def published_functions(draw: st.DrawFn) -> Published:
    record = Record(draw(st.sampled_from(("xgboost", "histogram", "moving-window"))))
    return Published(
        function="default/f-%d-00001",
        configuration="default/f",
        version=draw(st.integers(0, 1 << 45)),
        stage=draw(st.sampled_from(Stage)),
        reason=draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=20)),
        answers=Answers(
            draw(tables()),
            draw(tables()),
            draw(tables()),
            (draw(AMOUNTS), draw(AMOUNTS), draw(AMOUNTS)),
            draw(tables()),
            draw(AMOUNTS),
            draw(SIZES),
        ),
        offset=(draw(AMOUNTS), draw(AMOUNTS)),
        largest=(draw(AMOUNTS), draw(AMOUNTS)),
        observations=20,
        censored=0,
        cpu=record,
        memory=Record("xgboost"),
        duration=record,
        gate=None,
    )


def request(size: object = 4096, *, outputs: tuple[str, ...] = ()) -> InferRequest:
    tensor = InferInput("size", [1], "INT64", [size])
    wanted = [RequestedOutput(name) for name in outputs]
    return InferRequest("m", [tensor], "id 7", request_outputs=wanted)


def answered(model: FunctionModel, asked: InferRequest) -> Any:
    answer, headers = asyncio.run(model(asked))
    assert headers == {}
    return answer


@given(published_functions(), SIZES)
def test_every_way_to_ask_gives_the_same_answer(published: Published, size: int) -> None:
    model = FunctionModel(published)
    by_kserve, _ = answered(model, request(size)).to_rest()
    direct = json.loads(model.json(size, "id 7"))
    for output in direct["outputs"]:
        assert output.pop("parameters") is None
    assert direct == by_kserve


@given(published_functions(), SIZES)
def test_a_reader_of_the_tables_comes_to_the_same_answer(published: Published, size: int) -> None:
    answer = json.loads(FunctionModel(published).json(size, ""))
    outputs = {output["name"]: output["data"] for output in answer["outputs"]}
    for i, name in enumerate(("cpu_milli", "memory_bytes", "duration_ms")):
        thresholds, values = outputs[f"{name}_thresholds"], outputs[f"{name}_values"]
        raw = outputs["unknown"][i] if size < 0 else values[sum(t <= size for t in thresholds)]
        offset, largest = (0, 0) if i == 2 else (outputs["offset"][i], outputs["largest"][i])
        assert outputs[name] == [0 if raw == 0 else max(raw, min(raw + offset, largest))]
        assert outputs[name][0] >= raw
        assert all(a < b for a, b in pairwise(thresholds))
    assert outputs["largest_size"] == [published.answers.largest_size]
    thresholds, values = outputs["cpu_time_us_thresholds"], outputs["cpu_time_us_values"]
    expected = outputs["unknown_cpu_time_us"][0] if size < 0 else values[sum(t <= size for t in thresholds)]
    assert outputs["cpu_time_us"] == [expected] == [published.answers.cpu_time_at(size)]


def test_only_the_outputs_that_were_asked_for() -> None:
    model = FunctionModel(MODELLED)
    wanted = ("offset", "cpu_milli")
    rest = answered(model, request(outputs=wanted))
    assert [(o.name, o.data) for o in rest.outputs] == [("offset", [300, 64 << 20]), ("cpu_milli", [900])]
    with pytest.raises(InvalidInput, match="the output 'gpu' does not exist: want one of cpu_milli, mem"):
        asyncio.run(model(request(outputs=("gpu",))))


def test_a_function_that_is_profiled_answers_zeros_and_says_why() -> None:
    answer = json.loads(FunctionModel(PROFILED).json(UNKNOWN_SIZE, ""))
    assert [output["data"] for output in answer["outputs"][:4]] == [[0], [0], [0], [3100]]
    assert answer["parameters"] == {
        "version": "1700000000456",
        "estimator": "none",
        "stage": "profiling",
        "reason": "3 of 12 observations: use the user allocation",
    }


def test_what_is_no_request_is_refused() -> None:
    model = FunctionModel(MODELLED)
    for verb in InferenceVerb:
        with pytest.raises(InvalidInput, match="not in the Open Inference Protocol v2"):
            asyncio.run(model({"instances": [1]}, verb=verb))
    of_version = request()
    of_version.model_version = "3"
    with pytest.raises(InvalidInput, match="the model version is '3': want none"):
        asyncio.run(model(of_version))


@pytest.mark.parametrize("function", ["default/thumb-00001", "a/b.c-00002"])
def test_model_names(function: str) -> None:
    assert "/" not in model_name(function)
    assert function_name(model_name(function)) == function
