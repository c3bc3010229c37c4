"""The process: KServe's model server with the learner beside it on one event loop."""

import asyncio
import copy
import logging
from collections.abc import Mapping
from typing import Any, Protocol

import uvloop
from kserve import ModelRepository, ModelServer
from kserve.errors import InvalidInput, ModelNotFound, ServerNotReady
from kserve.logging import KSERVE_LOG_CONFIG, configure_logging

from libra_predictor import explain
from libra_predictor.protocols import Plane, RestServer
from libra_predictor.published import Published
from libra_predictor.settings import Settings
from libra_predictor.telemetry import Telemetry

log = logging.getLogger(__name__)


class ToldToClient(logging.Filter):
    """Drops the stack trace that KServe logs for a refusal: the client is told, and metrics count it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (
            record.exc_info and isinstance(record.exc_info[1], InvalidInput | ModelNotFound | ServerNotReady)
        )


def log_config() -> dict[str, Any]:
    """KServe's logging, without its two lines per request, which cost more than an answer."""
    config: dict[str, Any] = copy.deepcopy(KSERVE_LOG_CONFIG)
    config["filters"] = {"told_to_client": {"()": ToldToClient}}
    config["loggers"]["kserve"]["filters"] = ["told_to_client"]
    config["loggers"]["kserve.trace"]["level"] = "WARNING"
    config["loggers"]["uvicorn.access"]["level"] = "WARNING"
    config["loggers"]["libra_predictor"] = {"handlers": ["kserve"], "level": "INFO", "propagate": False}
    return config


class Source(Protocol):
    """Where the models come from: it puts them into the repository while it runs."""

    @property
    def ready(self) -> bool: ...

    def functions(self) -> Mapping[str, Published]: ...

    async def run(self) -> None: ...

    def stop(self) -> None: ...


class PredictorServer(ModelServer):
    """A server whose models come and go while it runs. It starts without any."""

    def __init__(
        self, settings: Settings, repository: ModelRepository, source: Source, telemetry: Telemetry
    ) -> None:
        # One worker, because a model that is published in one process is unknown to another.
        super().__init__(workers=1, registered_models=repository, enable_grpc=False)
        self._source = source
        plane = Plane(
            repository,
            lambda: source.ready,
            f"it is learned from its first {settings.min_observations} invocations, and dropped after"
            f" {settings.retire_days:g} days without an invocation",
        )
        own = explain.router(source.functions, plane.why_unknown)
        self._rest = RestServer(plane, own, telemetry.inferences, settings.http_port)

    def start(self, models: object = ()) -> None:
        """Serves until a signal says to stop. If the server or the source fails, raises its error."""
        self.servers = [self._source.run(), self._rest.start()]  # type: ignore[no-untyped-call]
        self.setup_event_loop()  # type: ignore[no-untyped-call]
        self.register_signal_handler()  # type: ignore[no-untyped-call]
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        try:
            await asyncio.gather(*self.servers)
        finally:
            self._source.stop()  # so that another replica can learn, whatever ended the server

    def stop(self, sig: int) -> None:
        self._source.stop()
        super().stop(sig)


def serve(settings: Settings, repository: ModelRepository, source: Source) -> None:
    """Serves what the source puts into the repository, until a signal says to stop."""
    configure_logging(log_config())
    log.info("settings %s", settings)
    # KServe leaves the choice of the loop to uvicorn, which does not run the loop, and configures a current
    # loop that asyncio.run then replaces.
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.set_event_loop(asyncio.new_event_loop())
    telemetry = Telemetry()
    try:
        PredictorServer(settings, repository, source, telemetry).start()
    finally:
        telemetry.shutdown()
