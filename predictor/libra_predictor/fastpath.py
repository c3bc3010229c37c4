"""Runs ahead of FastAPI: bounds every body, and answers plain JSON requests for a prediction.

KServe's route decodes a request three times and validates its answer, so it serves 770 requests a second on
one core. Libra's own clients only send plain requests, which are answered here with the same body. All other
requests go on to KServe's route, so that nothing is refused in two ways.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import orjson
from kserve import ModelRepository
from kserve.errors import InvalidInput

from libra_predictor.model import FunctionModel, size_of
from libra_predictor.telemetry import Inferences, Result

LARGEST_BODY = 1 << 16  # bytes; a request for an answer has about 100

_DIGITS = len(str(LARGEST_BODY))

_PREFIX, _SUFFIX = "/v2/models/", "/infer"
_JSON = b"application/json"
_TENSOR = {"name", "shape", "datatype", "data"}

_Scope = MutableMapping[str, Any]
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]


class FastPath:
    """An ASGI application in front of another."""

    def __init__(self, app: _App, repository: ModelRepository, inferences: Inferences) -> None:
        self._app = app
        self._models = repository.get_models()
        self._inferences = inferences

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if scope["method"] == "POST" and path.startswith(_PREFIX) and path.endswith(_SUFFIX):
            await self._infer(path[len(_PREFIX) : -len(_SUFFIX)], scope, receive, send)
        elif (body := await _read(scope, receive)) is None:
            await _refuse(send)
        else:
            await self._app(scope, _replayed(body, receive), send)

    async def _infer(self, name: str, scope: _Scope, receive: _Receive, send: _Send) -> None:
        headers = scope["headers"]
        with self._inferences.begin(name, headers) as inference:
            body = await _read(scope, receive)
            if body is None:
                inference.result = "refused"
                await _refuse(send)
                return
            model = self._models.get(name)
            answer = None
            if isinstance(model, FunctionModel) and _is_json(headers):
                answer = _answer(model, body)
            if answer is not None:
                inference.result = "answered"
                await _respond(send, 200, answer)
                return

            async def watched(message: _Message) -> None:
                if message["type"] == "http.response.start":
                    inference.result = _result(message["status"])
                await send(message)

            await self._app(scope, _replayed(body, receive), watched)


def _answer(model: FunctionModel, body: bytes) -> bytes | None:
    """The answer to a plain request; None for any other, acceptable or not."""
    try:
        request = orjson.loads(body)
        (tensor,) = request["inputs"]
        request_id = request.get("id", "")
        if request.keys() - {"id", "inputs"} or tensor.keys() != _TENSOR or type(request_id) is not str:
            return None
        size = size_of(tensor["name"], tensor["datatype"], tensor["shape"], tensor["data"])
    except (InvalidInput, ValueError, TypeError, KeyError, AttributeError):
        return None
    return model.json(size, request_id)


def _is_json(headers: list[tuple[bytes, bytes]]) -> bool:
    types = [value for name, value in headers if name == b"content-type"]
    return types == [_JSON]


def _result(status: int) -> Result:
    if status < 300:
        return "answered"
    if status == 404:
        return "unknown"
    return "refused" if status < 500 else "failed"


async def _read(scope: _Scope, receive: _Receive) -> bytes | None:
    """The body, or None as soon as it is known to be too large."""
    for name, value in scope["headers"]:
        if name == b"content-length" and (len(value) > _DIGITS or int(value) > LARGEST_BODY):
            return None
    body = b""
    while True:
        message = await receive()
        part: bytes = message.get("body", b"")
        body += part
        if len(body) > LARGEST_BODY:
            return None
        if not message.get("more_body", False):  # or the client is gone, and an answer does no harm
            return body


def _replayed(body: bytes, receive: _Receive) -> _Receive:
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replayed() -> _Message:
        return next(messages, None) or await receive()

    return replayed


async def _refuse(send: _Send) -> None:
    error = f"the body is too large: want at most {LARGEST_BODY} bytes"
    await _respond(send, 413, orjson.dumps({"error": error}))


async def _respond(send: _Send, status: int, body: bytes) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", _JSON), (b"content-length", b"%d" % len(body))],
        }
    )
    await send({"type": "http.response.body", "body": body})
