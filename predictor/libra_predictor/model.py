"""The KServe model of one function: answers from its step tables, which every answer also carries."""

import reprlib
from collections.abc import Sequence
from functools import cached_property

import orjson
from kserve import InferOutput, InferRequest, InferResponse, Model
from kserve.errors import InvalidInput
from kserve.model import InferenceVerb

from libra_predictor.observations import MAX_SIZE, UNKNOWN_SIZE
from libra_predictor.published import Published

INPUT = "size"
ACCEPTED = f'one input "{INPUT}" of datatype INT64 and shape [1]'
ACCEPTED_SIZE = f"one whole number of bytes from 0 to {MAX_SIZE}, or {UNKNOWN_SIZE} when the size is unknown"

_RESULTS = (
    "cpu_milli",
    "memory_bytes",
    "duration_ms",
    "cpu_time_us",
)  # the first four outputs, which depend on the size


def model_name(function: str) -> str:
    """A function is namespace/revision; a model name has to fit one segment of a path."""
    return function.replace("/", ".", 1)


def function_name(model: str) -> str:
    """The function that a model name stands for: only one, because a namespace has no dots."""
    return model.replace(".", "/", 1)


def size_of(name: object, datatype: object, shape: object, data: object) -> int:
    """The size in bytes, or UNKNOWN_SIZE, that the only tensor of a request holds.

    Raises InvalidInput, which says what is accepted, for any other tensor.
    """
    if name != INPUT or datatype != "INT64" or shape != [1]:
        raise InvalidInput(
            f"the input is {told(name)} of datatype {told(datatype)} and shape {told(shape)}: want {ACCEPTED}"
        )
    if isinstance(data, list) and len(data) == 1:
        size = data[0]
        if type(size) is int and UNKNOWN_SIZE <= size <= MAX_SIZE:
            return size
    raise InvalidInput(f'data of input "{INPUT}" is {told(data)}: want {ACCEPTED_SIZE}')


def told(value: object) -> str:
    """Formats a client's value for an error: of bounded length and depth, and encodable as UTF-8."""
    return reprlib.repr(value)


class FunctionModel(Model):
    """Immutable: after the function has learned, a new model replaces it under the same name."""

    def __init__(self, published: Published) -> None:
        super().__init__(model_name(published.function))
        self.published = published
        self.ready = True

    def get_input_types(self) -> list[dict[str, object]]:
        return [{"name": INPUT, "datatype": "INT64", "shape": [1]}]

    def get_output_types(self) -> list[dict[str, object]]:
        return [
            {"name": name, "datatype": "INT64", "shape": [len(data)]} for name, data in self._outputs.items()
        ]

    async def __call__(  # type: ignore[override]  # KServe declares another type than it takes
        self,
        body: object,
        headers: dict[str, str] | None = None,
        verb: InferenceVerb = InferenceVerb.PREDICT,
    ) -> tuple[InferResponse, dict[str, str]]:
        """Answers without KServe's steps around predict, whose four histograms cost more than an answer."""
        return await self.predict(body, headers), {}

    async def predict(
        self,
        payload: object,
        headers: dict[str, str] | None = None,
        response_headers: dict[str, str] | None = None,
    ) -> InferResponse:
        """The answer to a decoded request. Raises InvalidInput."""
        if not isinstance(payload, InferRequest):
            raise InvalidInput("the request is not in the Open Inference Protocol v2, the only one accepted")
        if payload.model_version:
            raise InvalidInput(
                f"the model version is {told(payload.model_version)}: want none, because only the newest is"
                " served"
            )
        request_id = _text("" if payload.id is None else payload.id)
        size = _only_size(payload)
        names = [output.name for output in payload.request_outputs or ()]
        for name in names:
            if not isinstance(name, str) or name not in self._outputs:
                raise InvalidInput(
                    f"the output {told(name)} does not exist: want one of {', '.join(self._outputs)}"
                )
        return self._response(size, request_id, names)

    def json(self, size: int, request_id: str) -> bytes:
        """The body that KServe's REST route would write for a request that names no outputs."""
        return self._json % (orjson.dumps(request_id), *self._results(size))

    def _response(self, size: int, request_id: str, names: Sequence[str]) -> InferResponse:
        results = dict(zip(_RESULTS, self._results(size), strict=True))
        return InferResponse(
            response_id=request_id,
            model_name=self.name,
            infer_outputs=[
                _tensor(name, [results[name]] if name in results else self._outputs[name])
                for name in names or self._outputs
            ],
            parameters=self._parameters,
        )

    def _results(self, size: int) -> tuple[int, int, int, int]:
        return *self.published.at(size), self.published.answers.cpu_time_at(size)

    @cached_property
    def _outputs(self) -> dict[str, list[int]]:
        """All outputs by name, in order; those of _RESULTS are for an input of unknown size."""
        published = self.published
        answers = published.answers
        outputs = dict(zip(_RESULTS, ([value] for value in self._results(UNKNOWN_SIZE)), strict=True))
        tables = (answers.cpu_milli, answers.memory_bytes, answers.duration_ms, answers.cpu_time_us)
        for name, table in zip(_RESULTS, tables, strict=True):
            outputs[f"{name}_thresholds"] = list(table.thresholds)
            outputs[f"{name}_values"] = list(table.values)
        outputs["unknown"] = list(answers.unknown)
        outputs["unknown_cpu_time_us"] = [answers.unknown_cpu_time_us]
        outputs["offset"] = list(published.offset)
        outputs["largest"] = list(published.largest)
        outputs["largest_size"] = [answers.largest_size]
        return outputs

    @cached_property
    def _parameters(self) -> dict[str, str]:
        published = self.published
        estimators = [record.estimator for record in (published.cpu, published.memory, published.duration)]
        return {
            "version": str(published.version),
            "estimator": estimators[0] if len(set(estimators)) == 1 else ",".join(estimators),
            "stage": str(published.stage),
            "reason": published.reason,
        }

    @cached_property
    def _json(self) -> bytes:
        """The format string of a body, with places for the ID as JSON and the results."""
        head = orjson.dumps(
            {"model_name": self.name, "model_version": None, "parameters": self._parameters}
        ).replace(b"%", b"%%")
        results = b",".join(_json_tensor(name, [0]).replace(b"[0]", b"[%d]") for name in _RESULTS)
        rest = b"".join(
            b"," + _json_tensor(name, data) for name, data in self._outputs.items() if name not in _RESULTS
        )
        return head[:-1] + b',"id":%s,"outputs":[' + results + rest + b"]}"


def _only_size(request: InferRequest) -> int:
    if len(request.inputs) != 1:
        names = [tensor.name for tensor in request.inputs]
        raise InvalidInput(f"the inputs are {told(names)}: want {ACCEPTED}")
    tensor = request.inputs[0]
    return size_of(tensor.name, tensor.datatype, tensor.shape, tensor.data)


def _text(request_id: object) -> str:
    if isinstance(request_id, str):
        try:
            request_id.encode()
            return request_id
        except UnicodeEncodeError:
            pass
    raise InvalidInput(f"the id is {told(request_id)}: want text that UTF-8 can encode")


def _tensor(name: str, data: list[int]) -> InferOutput:
    return InferOutput(name=name, shape=[len(data)], datatype="INT64", data=data)


def _json_tensor(name: str, data: list[int]) -> bytes:
    return orjson.dumps(
        {"name": name, "shape": [len(data)], "datatype": "INT64", "parameters": None, "data": data}
    )
