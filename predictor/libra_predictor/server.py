"""KServe's model server with the learner beside it on one event loop."""

import asyncio
import copy
import logging
from typing import Any

import uvloop
from kserve import ModelRepository, ModelServer
from kserve.errors import InvalidInput, ModelNotFound, ServerNotReady
from kserve.logging import KSERVE_LOG_CONFIG, configure_logging
from kserve.protocol.dataplane import DataPlane

from libra_predictor.learner import Learner
from libra_predictor.settings import Settings

log = logging.getLogger(__name__)


class ToldToClient(logging.Filter):
    """Drops the stack trace that KServe logs of each refusal: the client is told, and metrics count it."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (
            record.exc_info and isinstance(record.exc_info[1], InvalidInput | ModelNotFound | ServerNotReady)
        )


def log_config() -> dict[str, Any]:
    """KServe's, without its two lines per request, which cost more than an answer."""
    config: dict[str, Any] = copy.deepcopy(KSERVE_LOG_CONFIG)
    config["filters"] = {"told_to_client": {"()": ToldToClient}}
    config["loggers"]["kserve"]["filters"] = ["told_to_client"]
    config["loggers"]["kserve.trace"]["level"] = "WARNING"
    config["loggers"]["uvicorn.access"]["level"] = "WARNING"
    config["loggers"]["libra_predictor"] = {"handlers": ["kserve"], "level": "INFO", "propagate": False}
    return config


class HonestDataPlane(DataPlane):
    """KServe's own server is ready as soon as it listens; this one when it has learned what is recorded."""

    def __init__(self, repository: ModelRepository, learner: Learner) -> None:
        super().__init__(model_registry=repository)
        self._learner = learner

    async def ready(self) -> bool:
        return self._learner.ready


class PredictorServer(ModelServer):
    """Models come and go with the observations; none is there at the start."""

    def __init__(self, settings: Settings) -> None:
        repository = ModelRepository()
        # One worker, because a model that is published in one process is unknown to another.
        super().__init__(
            http_port=settings.http_port,
            workers=1,
            registered_models=repository,
            enable_grpc=False,
            enable_latency_logging=False,
        )
        self._learner = Learner(settings, repository)
        self.dataplane = HonestDataPlane(repository, self._learner)
        self.servers.append(self._learner.run())

    def stop(self, sig: int) -> None:
        self._learner.stop()
        super().stop(sig)


def serve(settings: Settings) -> None:
    """Serves until a signal says to stop."""
    configure_logging(log_config())
    log.info("settings %s", settings)
    # KServe leaves the choice of the loop to uvicorn, which does not run it, and configures a current loop
    # that asyncio.run then replaces.
    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.set_event_loop(asyncio.new_event_loop())
    PredictorServer(settings).start([])
