"""The server's metrics and traces, as Prometheus and an OTLP collector get them."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import PublishedServer, eventually
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from libra_predictor.telemetry import Inferences

INFER = "/v2/models/default.thumb-00001/infer"
COUNT = "libra_predictor_infer_duration_seconds_count"
BODY = b'{"inputs":[{"name":"size","shape":[1],"datatype":"INT64","data":[4096]}]}'


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Span] = []
        self.services: set[str] = set()
        self.metrics: set[str] = set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/traces":
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.server.services |= {
                    attribute.value.string_value
                    for attribute in resource.resource.attributes
                    if attribute.key == "service.name"
                }
                self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        else:
            assert self.path == "/v1/metrics"
            for measured in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.server.metrics |= {m.name for scope in measured.scope_metrics for m in scope.metrics}
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def traceparent(number: int) -> tuple[bytes, bytes, dict[str, str]]:
    trace, span = number.to_bytes(16, "big"), number.to_bytes(8, "big")
    return trace, span, {"traceparent": f"00-{trace.hex()}-{span.hex()}-01"}


def test_spans_are_children_of_the_request_that_asked(collector: Collector, tmp_path: Path) -> None:
    server = PublishedServer(tmp_path / "log", OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint)
    try:
        server.gets_ready()
        json = {"Content-Type": "application/json"}
        by_kserve = {"Content-Type": "application/json; charset=utf-8"}
        for number, headers, body in ((1, json, BODY), (2, by_kserve, BODY), (3, json, b"{")):
            server.send("POST", INFER, body, headers | traceparent(number)[2])
        server.send("POST", "/v2/models/default.none/infer", BODY, json | traceparent(4)[2])
        server.send("POST", INFER, BODY, json | {"traceparent": "00-no-trace-01"})
    finally:
        assert server.stop() == 0, server.log()

    spans = {span.trace_id: span for span in collector.spans}
    assert len(spans) == len(collector.spans) == 5
    for number, result in ((1, "answered"), (2, "answered"), (3, "refused"), (4, "unknown")):
        trace, parent, _ = traceparent(number)
        span = spans.pop(trace)
        assert span.name == "infer"
        assert span.kind == Span.SPAN_KIND_SERVER
        assert span.parent_span_id == parent
        assert span.status.code == Status.STATUS_CODE_UNSET
        attributes = {attribute.key: attribute.value.string_value for attribute in span.attributes}
        assert attributes["libra.model"] == ("default.none" if number == 4 else "default.thumb-00001")
        assert attributes["libra.result"] == result
    assert all(span.parent_span_id == b"" for span in spans.values())
    assert collector.services == {"libra-predictor"}
    assert "libra.predictor.infer.duration" in collector.metrics


def test_a_signal_is_sent_only_where_it_is_asked_for(collector: Collector, tmp_path: Path) -> None:
    endpoint = f"{collector.endpoint}/v1/metrics"
    server = PublishedServer(tmp_path / "log", OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=endpoint)
    try:
        server.gets_ready()
        assert server.infer("default.thumb-00001")[0] == 200
    finally:
        assert server.stop() == 0, server.log()
    assert "libra.predictor.infer.duration" in collector.metrics
    assert collector.spans == []


def test_stops_cleanly_when_the_collector_is_away(collector: Collector, tmp_path: Path) -> None:
    collector.server_close()
    server = PublishedServer(tmp_path / "log", OTEL_EXPORTER_OTLP_ENDPOINT=collector.endpoint)
    try:
        server.gets_ready()
        assert server.infer("default.thumb-00001")[0] == 200
    finally:
        assert server.stop() == 0, server.log()


def test_latency_is_counted_by_result(tmp_path: Path) -> None:
    server = PublishedServer(tmp_path / "log")
    try:
        server.gets_ready()
        server.infer("default.thumb-00001")
        server.infer("default.thumb-00001", -5)
        server.infer("default.none")
        server.send("POST", INFER, b" " * (1 << 20), {})

        def counted() -> bool | None:
            lines = server.ask("GET", "/metrics")[1].decode().splitlines()
            return {
                f'{COUNT}{{result="{result}"}} {count}'
                for result, count in (("answered", 1.0), ("refused", 2.0), ("unknown", 1.0))
            } <= set(lines) or None

        # A client has its answer before the request is measured.
        eventually("all are counted", counted)
    finally:
        server.stop()


def test_without_a_tracer_no_header_is_looked_at() -> None:
    def headers() -> Iterator[tuple[bytes, bytes]]:
        raise AssertionError("was looked at")
        yield (b"", b"")

    with Inferences().begin("m", headers()) as inference:
        inference.result = "answered"
