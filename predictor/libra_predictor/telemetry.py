"""OpenTelemetry: metrics on /metrics always, metrics and traces over OTLP if its environment says so."""

import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Literal

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_SERVICE = "libra-predictor"
_LIBRARY = "libra_predictor"
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_ENDPOINT_OF = "OTEL_EXPORTER_OTLP_{}_ENDPOINT"
_SHUTDOWN_SECONDS = 5.0
# From a hundredth of the promised 2 ms to a thousand times it.
_SECONDS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2, 0.25, 2.0)

Result = Literal["answered", "unknown", "refused", "failed"]
Headers = Iterable[tuple[bytes, bytes]]

_PROPAGATOR = TraceContextTextMapPropagator()
_PROPAGATED = {field.encode(): field for field in _PROPAGATOR.fields}


class Telemetry:
    """The process's meter provider, and its tracer provider if traces have an endpoint to go to."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        resource = Resource.create(
            {
                "service.name": environment.get("OTEL_SERVICE_NAME", _SERVICE),
                "service.instance.id": socket.gethostname(),
            }
        )
        # Into prometheus_client's registry, which KServe's /metrics serves.
        readers: list[MetricReader] = [PrometheusMetricReader(scope_info_enabled=False)]
        if _sent(environment, "METRICS"):
            readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
        self._meters = MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)
        metrics.set_meter_provider(self._meters)
        self._traces: TracerProvider | None = None
        if _sent(environment, "TRACES"):
            self._traces = TracerProvider(resource=resource, shutdown_on_exit=False)
            self._traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
            trace.set_tracer_provider(self._traces)
        self.inferences = Inferences(self._traces)

    def shutdown(self) -> None:
        """Sends what was not sent yet, but gives up after some seconds: an exporter tries for longer."""
        sending = threading.Thread(target=self._shutdown, daemon=True)
        sending.start()
        sending.join(_SHUTDOWN_SECONDS)

    def _shutdown(self) -> None:
        if self._traces is not None:
            self._traces.shutdown()
        self._meters.shutdown()


def _sent(environment: Mapping[str, str], signal: str) -> bool:
    return bool(environment.get(_ENDPOINT) or environment.get(_ENDPOINT_OF.format(signal)))


class Inferences:
    """Measures requests for an answer. Without a tracer, it reads no headers and makes no spans."""

    def __init__(self, traces: trace.TracerProvider | None = None) -> None:
        self.tracer = None if traces is None else traces.get_tracer(_LIBRARY)
        self.duration = metrics.get_meter(_LIBRARY).create_histogram(
            "libra.predictor.infer.duration",
            unit="s",
            description="Time from a request's headers to its answer, by `result`.",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

    def begin(self, model: str, headers: Headers) -> "Inference":
        return Inference(self, model, headers)


class Inference:
    """One request, as a context manager. It counts as failed unless its result is set."""

    __slots__ = ("_inferences", "_span", "_started", "result")

    def __init__(self, inferences: Inferences, model: str, headers: Headers) -> None:
        self.result: Result = "failed"
        self._inferences = inferences
        self._span: trace.Span | None = None
        self._started = time.perf_counter()
        if inferences.tracer is not None:
            self._span = inferences.tracer.start_span(
                "infer",
                context=_PROPAGATOR.extract(_carrier(headers)),
                kind=trace.SpanKind.SERVER,
                attributes={"libra.model": model},
            )

    def __enter__(self) -> "Inference":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inferences.duration.record(time.perf_counter() - self._started, {"result": self.result})
        if self._span is not None:
            self._span.set_attribute("libra.result", self.result)
            if self.result == "failed":
                self._span.set_status(trace.StatusCode.ERROR, None if error is None else str(error))
            self._span.end()


def _carrier(headers: Headers) -> dict[str, str]:
    """The headers of W3C Trace Context, as text."""
    return {_PROPAGATED[key]: value.decode("latin-1") for key, value in headers if key in _PROPAGATED}
