"""The KServe model of one function: answers from its step tables, which every answer also carries."""

from kserve import InferInput, InferOutput, InferRequest, InferResponse, Model
from kserve.errors import InvalidInput

from libra_predictor import metrics
from libra_predictor.observations import MAX_SIZE, UNKNOWN_SIZE
from libra_predictor.trainer import Answers

ESTIMATOR = "xgboost"

_INPUT = "size"
_ACCEPTED = f'one input "{_INPUT}" of datatype INT64 and shape [1]'
_RESULTS = ("cpu_milli", "memory_bytes", "duration_ms")


def model_name(function: str) -> str:
    """A function is namespace/revision; a model name has to fit one segment of a path."""
    return function.replace("/", ".", 1)


class FunctionModel(Model):
    """Immutable: what is learned anew is a new model under the same name."""

    def __init__(self, function: str, answers: Answers, version: int) -> None:
        super().__init__(model_name(function))
        self.answers = answers
        self.version = version
        self.ready = True

    def get_input_types(self) -> list[dict[str, object]]:
        return [{"name": _INPUT, "datatype": "INT64", "shape": [1]}]

    def get_output_types(self) -> list[dict[str, object]]:
        return [
            {"name": output.name, "datatype": output.datatype, "shape": output.shape}
            for output in self._outputs(UNKNOWN_SIZE)
        ]

    async def predict(
        self,
        payload: object,
        headers: dict[str, str] | None = None,
        response_headers: dict[str, str] | None = None,
    ) -> InferResponse:
        try:
            if not isinstance(payload, InferRequest):
                raise InvalidInput(
                    "the request is not in the Open Inference Protocol v2, the only one accepted"
                )
            size = _size(payload.inputs)
        except InvalidInput:
            metrics.REQUESTS_REFUSED.inc()
            raise
        return InferResponse(
            response_id=payload.id or "",
            model_name=self.name,
            infer_outputs=self._outputs(size),
            parameters={"version": str(self.version), "estimator": ESTIMATOR},
        )

    def _outputs(self, size: int) -> list[InferOutput]:
        answers = self.answers
        tables = (answers.cpu_milli, answers.memory_bytes, answers.duration_ms)
        values = answers.unknown if size == UNKNOWN_SIZE else tuple(table.at(size) for table in tables)
        outputs = [_int64(name, [value]) for name, value in zip(_RESULTS, values, strict=True)]
        for name, table in zip(_RESULTS, tables, strict=True):
            outputs.append(_int64(f"{name}_thresholds", list(table.thresholds)))
            outputs.append(_int64(f"{name}_values", list(table.values)))
        outputs.append(_int64("unknown", list(answers.unknown)))
        return outputs


def _int64(name: str, data: list[int]) -> InferOutput:
    return InferOutput(name=name, shape=[len(data)], datatype="INT64", data=data)


def _size(inputs: list[InferInput]) -> int:
    names = [tensor.name for tensor in inputs]
    if names != [_INPUT]:
        raise InvalidInput(f"inputs are {names}: accepted is {_ACCEPTED}")
    tensor = inputs[0]
    if tensor.datatype != "INT64" or tensor.shape != [1]:
        raise InvalidInput(
            f'input "{_INPUT}" is of datatype {tensor.datatype} and shape {tensor.shape}:'
            f" accepted is {_ACCEPTED}"
        )
    data = tensor.data if isinstance(tensor.data, list) else tensor.as_numpy().tolist()
    if len(data) != 1 or type(data[0]) is not int or not UNKNOWN_SIZE <= data[0] <= MAX_SIZE:
        raise InvalidInput(
            f'data of input "{_INPUT}" is {data}: accepted is one whole number of bytes from 0 to {MAX_SIZE},'
            f" or {UNKNOWN_SIZE} when the size is unknown"
        )
    return data[0]
