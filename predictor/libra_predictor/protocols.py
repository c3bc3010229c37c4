"""KServe's REST server, without the operations that only an operator of models should have."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from kserve import InferRequest, InferResponse, ModelRepository
from kserve.errors import InvalidInput, ModelNotFound
from kserve.protocol.dataplane import DataPlane
from kserve.protocol.model_repository_extension import ModelRepositoryExtension
from kserve.protocol.rest.server import RESTServer, metrics_handler
from kserve.protocol.rest.v2_datamodels import (
    ListModelsResponse,
    ModelMetadataResponse,
    ModelReadyResponse,
    ServerLiveResponse,
    ServerMetadataResponse,
    ServerReadyResponse,
)
from kserve.protocol.rest.v2_endpoints import V2Endpoints
from starlette.exceptions import HTTPException

from libra_predictor.fastpath import FastPath
from libra_predictor.model import ACCEPTED, ACCEPTED_SIZE, FunctionModel, function_name, told
from libra_predictor.telemetry import Inferences
from libra_predictor.waiting import WaitingServer

_LONGEST_NAME = 320  # a namespace, a dot and a revision have at most 127


class UnknownFunction(ModelNotFound):
    """Says what to do without an answer, and why there is none."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


class Plane(DataPlane):
    """KServe's data plane, with truthful readiness and helpful refusals."""

    def __init__(self, repository: ModelRepository, ready: Callable[[], bool], why_none: str) -> None:
        super().__init__(model_registry=repository)
        self._ready = ready
        self._why_none = why_none

    def metadata(self) -> dict[str, Any]:
        return super().metadata() | {"name": "libra-predictor", "extensions": []}

    async def ready(self) -> bool:
        return self._ready()

    def why_unknown(self, function: str) -> str:
        """The error for a function, namespace/revision, that has no model."""
        named = function if function.isascii() and function.isprintable() else told(function)
        why = self._why_none if self._ready() else "this replica has not read its store yet"
        return f"function {named[:_LONGEST_NAME]} is not known: use the user allocation; {why}"

    def get_model_from_registry(self, name: str) -> FunctionModel:
        model = self.model_registry.get_model(name)
        if not isinstance(model, FunctionModel):
            raise UnknownFunction(self.why_unknown(function_name(name)))
        return model

    async def get_model(self, name: str) -> FunctionModel:
        return self.get_model_from_registry(name)

    async def model_ready(self, model_name: str, disable_predictor_health_check: bool = False) -> bool:
        self.get_model_from_registry(model_name)
        return True

    def decode(self, *arguments: Any, **named: Any) -> tuple[dict[str, Any] | InferRequest, dict[str, Any]]:
        # KServe decodes without checking first, so any exception is about what the client sent.
        try:
            return super().decode(*arguments, **named)
        except Exception as error:
            raise InvalidInput(f"the request cannot be read ({error!r:.200}): want {ACCEPTED}") from error

    def encode(
        self, model_name: str, response: InferResponse, headers: object, req_attributes: object
    ) -> tuple[dict[str, Any], dict[str, str]]:
        # KServe's makes a CloudEvent of it if the request has any header of one, and fails unless it has all.
        body, _ = response.to_rest()
        assert isinstance(body, dict)  # noqa: S101  # no output of ours is binary
        return body, {}


class RestServer(RESTServer):
    """The routes of the Open Inference Protocol and our own, and none that loads or unloads models."""

    def __init__(self, plane: Plane, own: APIRouter, inferences: Inferences, port: int) -> None:
        # FastAPI's own telemetry would measure most requests a second time.
        self._fastapi = FastAPI(
            title="Libra's predictor",
            docs_url=None,
            redoc_url=None,
            telemetry={"tracing": False, "metrics": False, "logs": False},
        )
        self._own = own
        super().__init__(
            FastPath(self._fastapi, plane.model_registry, inferences),  # type: ignore[arg-type]  # uvicorn's
            plane,
            ModelRepositoryExtension(plane.model_registry),
            port,
        )
        # KServe's server only adds a refresh of certificates, and Libra's has none.
        self._server = WaitingServer(self.config)  # type: ignore[assignment]

    def create_application(self) -> None:
        self._register_endpoints(self._fastapi)
        self._add_exception_handlers(self._fastapi)

    def _register_endpoints(self, app: FastAPI) -> None:
        endpoints = V2Endpoints(self.dataplane)
        app.add_api_route("/", self.dataplane.live)
        app.add_api_route("/metrics", metrics_handler)
        routes = APIRouter(prefix="/v2", tags=["V2"])
        for path, endpoint, response in (
            ("", endpoints.metadata, ServerMetadataResponse),
            ("/health/live", endpoints.live, ServerLiveResponse),
            ("/health/ready", endpoints.ready, ServerReadyResponse),
            ("/models", endpoints.models, ListModelsResponse),
            ("/models/{model_name}", endpoints.model_metadata, ModelMetadataResponse),
            ("/models/{model_name}/ready", endpoints.model_ready, ModelReadyResponse),
        ):
            routes.add_api_route(path, endpoint, response_model=response)
        routes.add_api_route(
            "/models/{model_name}/infer", endpoints.infer, response_model=None, methods=["POST"]
        )
        app.include_router(routes)
        app.include_router(self._own)

    def _add_exception_handlers(self, app: FastAPI) -> None:
        super()._add_exception_handlers(app)
        app.add_exception_handler(RequestValidationError, _malformed)
        app.add_exception_handler(HTTPException, _refused)


async def _malformed(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    # The input of each problem is left out: it may not be encodable as UTF-8.
    problems = [
        f"{'.'.join(str(part) for part in problem['loc'])[:100]}: {problem['msg']}"
        for problem in error.errors()
        if "bytes" not in problem["loc"]  # the other form of a body, which is for binary tensors
    ]
    accepted = f"JSON with {ACCEPTED}" if request.method == "POST" else ACCEPTED_SIZE
    return _error(HTTPStatus.BAD_REQUEST, f"{'; '.join(problems[:5])}: want {accepted}")


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101
    detail = error.detail
    if error.status_code == HTTPStatus.BAD_REQUEST:
        detail += f": want JSON with {ACCEPTED}"
    return _error(error.status_code, detail, error.headers)


def _error(status: int, error: str, headers: Any = None) -> JSONResponse:
    told_as = error.encode(errors="backslashreplace").decode()
    return JSONResponse({"error": told_as}, status, headers)
