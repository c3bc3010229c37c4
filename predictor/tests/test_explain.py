import json
from typing import Any

import pytest
from conftest import PublishedServer
from hypothesis import given, settings
from hypothesis import strategies as st
from published_server import MODELLED

from libra_predictor.observations import MAX_SIZE

MODELLED_ROUTE = "/libra/v1/functions/default/thumb-00001"


def explained(server: PublishedServer, route: str) -> tuple[int, Any]:
    status, body = server.ask("GET", route)
    return status, json.loads(body)


def test_lists_functions(published_server: PublishedServer) -> None:
    assert explained(published_server, "/libra/v1/functions") == (
        200,
        {
            "functions": [
                {
                    "name": "default/new-00001",
                    "stage": "profiling",
                    "version": "1700000000456",
                    "estimators": {
                        "cpu": "none",
                        "memory": "none",
                        "duration": "none",
                        "cpu_time": "histogram",
                    },
                    "observations": 3,
                },
                {
                    "name": "default/thumb-00001",
                    "stage": "drifted",
                    "version": "1700000000123",
                    "estimators": {
                        "cpu": "xgboost",
                        "memory": "histogram",
                        "duration": "xgboost",
                        "cpu_time": "xgboost",
                    },
                    "observations": 140,
                },
            ]
        },
    )


def test_explains_an_answer(published_server: PublishedServer) -> None:
    assert explained(published_server, f"{MODELLED_ROUTE}?size=60000") == (
        200,
        {
            "name": "default/thumb-00001",
            "configuration": "default/thumb",
            "model": "default.thumb-00001",
            "version": "1700000000123",
            "stage": "drifted",
            "reason": MODELLED.reason,
            "size": 60_000,
            "answer": {
                "cpu_milli": 2000,
                "memory_bytes": 192 << 20,
                "duration_ms": 95,
                "cpu_time_us": 74_000,
            },
            "raw": {
                "cpu_milli": 1900,
                "memory_bytes": 128 << 20,
                "duration_ms": 95,
                "cpu_time_us": 74_000,
            },
            "offset": {"cpu_milli": 300, "memory_bytes": 64 << 20},
            "largest": {"cpu_milli": 2000, "memory_bytes": 1 << 30},
            "largest_size": 80_000,
            "observations": 140,
            "censored": 3,
            "records": {
                "cpu": {"estimator": "xgboost", "calls": 60, "under_predicted": 1, "mean_error": 0.25},
                "memory": {"estimator": "histogram", "calls": 60, "under_predicted": 0, "mean_error": 0.5},
                "duration": {"estimator": "xgboost", "calls": 60, "under_predicted": 14, "mean_error": -0.1},
                "cpu_time": {"estimator": "xgboost", "calls": 60, "under_predicted": 31, "mean_error": 0.125},
            },
            "gate": {"cpu_accuracy": 0.95, "memory_accuracy": 0.91, "duration_r2": 0.4, "passed": False},
        },
    )


def test_explains_a_function_that_is_profiled(published_server: PublishedServer) -> None:
    status, explanation = explained(published_server, "/libra/v1/functions/default/new-00001?size=5")
    assert status == 200
    assert explanation["answer"] == {
        "cpu_milli": 0,
        "memory_bytes": 0,
        "duration_ms": 0,
        "cpu_time_us": 3100,
    }
    assert explanation["reason"] == "3 of 12 observations: use the user allocation"
    assert explanation["gate"] is None


@pytest.mark.parametrize("query", ["", "?size=-1"])
def test_a_size_that_is_unknown(published_server: PublishedServer, query: str) -> None:
    status, explanation = explained(published_server, MODELLED_ROUTE + query)
    assert status == 200
    assert explanation["size"] is None
    assert explanation["raw"] == {
        "cpu_milli": 1900,
        "memory_bytes": 128 << 20,
        "duration_ms": 20,
        "cpu_time_us": 4200,
    }


@given(size=st.integers(0, MAX_SIZE))
@settings(max_examples=50)
def test_explains_what_is_served(published_server: PublishedServer, size: int) -> None:
    status, explanation = explained(published_server, f"{MODELLED_ROUTE}?size={size}")
    assert status == 200
    _, served = published_server.infer("default.thumb-00001", size)
    results = {output["name"]: output["data"] for output in served["outputs"]}
    assert {name: [value] for name, value in explanation["answer"].items()}.items() <= results.items()
    assert explanation["version"] == served["parameters"]["version"]


@pytest.mark.parametrize(
    "size", ["-2", str(MAX_SIZE + 1), "1.5", "many", "", "NaN", "9" * 5000, "%ff", "1&size=2x"]
)
def test_refuses_what_is_no_size(published_server: PublishedServer, size: str) -> None:
    status, refusal = explained(published_server, f"{MODELLED_ROUTE}?size={size}")
    assert status == 400
    assert refusal["error"].startswith("query.size: ")
    assert refusal["error"].endswith(
        f"want one whole number of bytes from 0 to {MAX_SIZE}, or -1 when the size is unknown"
    )


def test_says_why_a_function_is_not_known(published_server: PublishedServer) -> None:
    assert explained(published_server, "/libra/v1/functions/default/none?size=5") == (
        404,
        {
            "error": "function default/none is not known: use the user allocation; it is learned from"
            " its first 12 invocations, and dropped after 14 days without an invocation"
        },
    )
