"""Bad requests of every kind to the real server: refused with a reason, and harmless."""

import json
import struct
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import pytest
from conftest import PublishedServer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from published_server import MODELLED

from libra_predictor.fastpath import LARGEST_BODY
from libra_predictor.observations import MAX_SIZE, UNKNOWN_SIZE

INFER = "/v2/models/default.thumb-00001/infer"
PLAIN = {"Content-Type": "application/json"}
# Not what the fast path takes, so that KServe's own route answers.
KSERVES = {"Content-Type": "application/json; charset=utf-8"}
BINARY = {"Content-Type": "application/octet-stream"}

fuzz = settings(
    max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)

NUMBERS = st.one_of(
    st.sampled_from(
        [-(2**63), -2, UNKNOWN_SIZE, 0, MAX_SIZE, MAX_SIZE + 1, 2**63 - 1, 2**63, 2**64, 10**400]
    ),
    st.integers(-(2**70), 2**70),
    st.floats(),
)
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), NUMBERS, st.text(max_size=8), st.sampled_from(["size", "INT64", "\ud800"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["name", "data", "x"]), inner, max_size=3),
    ),
    max_leaves=6,
)
SIZES = st.integers(UNKNOWN_SIZE, MAX_SIZE)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """A right request, except for a few members: missing, of any value, given twice, or unknown."""
    tensor: dict[str, Any] = {"name": "size", "shape": [1], "datatype": "INT64", "data": [draw(SIZES)]}
    document: dict[str, Any] = {"id": "7", "inputs": [tensor]}
    for target in draw(st.lists(st.sampled_from([tensor, document]), max_size=2)):
        key = draw(st.sampled_from([*target, "parameters", "outputs", "model_version"]))
        if draw(st.booleans()):
            target.pop(key, None)
        elif draw(st.booleans()):
            target[key] = draw(st.lists(VALUES, max_size=2))
        else:
            target[key] = draw(VALUES)
    text = json.dumps(document)
    if draw(st.booleans()) and len(text) > 2:
        text = '{"inputs": [1], "id": "twice", ' + text[1:]
    return text


def check(server: PublishedServer, body: bytes, headers: Mapping[str, str], path: str = INFER) -> int:
    """The request is refused with a reason, or its answer is right; and the next request is answered."""
    status, content = server.send("POST", path, body, headers)
    answer = json.loads(content)
    if status == 200:
        size = json.loads(body)["inputs"][0]["data"][0]
        assert type(size) is int
        results = {output["name"]: output["data"] for output in answer["outputs"]}
        for name, value in zip(("cpu_milli", "memory_bytes", "duration_ms"), MODELLED.at(size), strict=True):
            assert results.get(name, [value]) == [value]
    else:
        assert 400 <= status < 500, content
        assert "want " in answer["error"] or "use the user allocation" in answer["error"], content
    return status


def answers_rightly(server: PublishedServer) -> None:
    status, answer = server.infer("default.thumb-00001", 4096)
    assert status == 200
    assert tuple(output["data"][0] for output in answer["outputs"][:3]) == MODELLED.at(4096)


@given(document=documents())
@fuzz
def test_rest_documents(published_server: PublishedServer, document: str) -> None:
    body = document.encode()
    plain, kserves = (published_server.send("POST", INFER, body, headers) for headers in (PLAIN, KSERVES))
    assert plain[0] == kserves[0]
    assert json.loads(plain[1]) == json.loads(kserves[1])
    check(published_server, body, PLAIN)


@given(body=st.one_of(st.binary(max_size=200), documents().map(lambda d: d.encode()[: len(d) // 2])))
@fuzz
def test_rest_bytes(published_server: PublishedServer, body: bytes) -> None:
    for headers in (PLAIN, BINARY, {"Content-Type": "text/plain"}, {}):
        assert check(published_server, body, headers) != 200
    answers_rightly(published_server)


@given(
    parameters=st.one_of(VALUES, st.fixed_dictionaries({"binary_data_size": VALUES})),
    changes=st.dictionaries(st.sampled_from(["name", "shape", "datatype", "data"]), VALUES, max_size=1),
    tail=st.one_of(st.binary(max_size=16), SIZES.map(lambda size: struct.pack("<q", size))),
    length=st.one_of(
        st.none(),
        st.integers(-5, 400).map(str),
        st.text(st.characters(codec="ascii", min_codepoint=32), max_size=5),
    ),
)
@fuzz
def test_rest_binary_tensors(
    published_server: PublishedServer,
    parameters: Any,
    changes: dict[str, Any],
    tail: bytes,
    length: str | None,
) -> None:
    tensor = {"name": "size", "shape": [1], "datatype": "INT64", "parameters": parameters} | changes
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = BINARY | {"Inference-Header-Content-Length": length or str(len(head))}
    status, content = published_server.send("POST", INFER, head + tail, headers)
    assert status == 200 or 400 <= status < 500, content
    if status == 200:
        data = changes.get("data") or list(struct.unpack("<q", tail[:8]))
        results = [output["data"][0] for output in json.loads(content)["outputs"][:3]]
        assert tuple(results) == MODELLED.at(data[0])
    answers_rightly(published_server)


def test_rest_binary_tensor_is_answered(published_server: PublishedServer) -> None:
    tensor = {"name": "size", "shape": [1], "datatype": "INT64", "parameters": {"binary_data_size": 8}}
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = BINARY | {"Inference-Header-Content-Length": str(len(head))}
    status, content = published_server.send("POST", INFER, head + struct.pack("<q", 60_000), headers)
    assert status == 200, content
    results = [output["data"][0] for output in json.loads(content)["outputs"][:3]]
    assert tuple(results) == MODELLED.at(60_000)


@given(
    headers=st.dictionaries(
        st.sampled_from(["ce-id", "ce-specversion", "ce-type", "ce-source", "ce-time", "Content-Type"]),
        st.sampled_from(["1.0", "x", "application/cloudevents+json", "application/json", "a/b; c=d", ""]),
    )
)
@fuzz
def test_rest_headers(published_server: PublishedServer, headers: dict[str, str]) -> None:
    tensor = {"name": "size", "shape": [1], "datatype": "INT64", "data": [4096]}
    check(published_server, json.dumps({"inputs": [tensor]}).encode(), headers)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 60_000,
        b'{"inputs":' + b"[" * 60_000 + b"]" * 5_000,
        b'{"inputs": [{"name": "size", "shape": [1], "datatype": "INT64", "data": %s}]}'
        % (b"[" * 900 + b"]" * 900),
        b'{"inputs": [{"name": "size", "shape": [1], "datatype": "INT64", "data": [%s]}]}' % (b"9" * 60_000),
        b'{"inputs": [%s]}' % b",".join([b'{"name": "size"}'] * 3_000),
        json.dumps({"x" * 30_000: "y" * 30_000}).encode(),
        b"",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
    ],
)
def test_rest_deep_long_and_odd(published_server: PublishedServer, body: bytes) -> None:
    assert check(published_server, body, PLAIN) == 400
    answers_rightly(published_server)


def test_rest_a_large_body_is_not_read(published_server: PublishedServer) -> None:
    body = b" " * (10 << 20)

    def chunked() -> Any:
        for _ in range(160):
            yield body[:LARGEST_BODY]

    for sent in (body, chunked()):
        for path in (INFER, "/v2/models/default.none/infer", "/libra/v1/functions"):
            status, content = published_server.send("POST", path, sent, PLAIN)
            assert status == 413
            assert json.loads(content) == {
                "error": f"the body is too large: want at most {LARGEST_BODY} bytes"
            }
            if sent is not body:
                break
    assert check(published_server, b" " * LARGEST_BODY, PLAIN) == 400
    answers_rightly(published_server)


@given(
    name=st.text(st.characters(codec="utf-8"), max_size=400).map(lambda t: t.replace("/", "")),
)
@fuzz
def test_rest_unknown_functions(published_server: PublishedServer, name: str) -> None:
    tensor = {"name": "size", "shape": [1], "datatype": "INT64", "data": [4096]}
    path = f"/v2/models/{quote(name, safe='')}/infer"
    status, content = published_server.send("POST", path, json.dumps({"inputs": [tensor]}), PLAIN)
    assert status == 404
    assert name in ("", ".", "..") or "use the user allocation" in json.loads(content)["error"], content


def test_rest_what_is_closed(published_server: PublishedServer) -> None:
    for path in (
        "/v2/repository/models/default.thumb-00001/unload",
        "/v2/repository/models/default.thumb-00001/load",
        "/v2/models/default.thumb-00001/versions/1/infer",
        "/v1/models/default.thumb-00001:predict",
        "/v1/models/default.thumb-00001:explain",
    ):
        assert published_server.ask("POST", path, {})[0] == 404, path
    assert published_server.ask("DELETE", INFER)[0] == 405
    answers_rightly(published_server)


def test_nothing_of_all_this_left_a_trace_in_the_log(published_server: PublishedServer) -> None:
    answers_rightly(published_server)
    assert "Traceback" not in published_server.log()
