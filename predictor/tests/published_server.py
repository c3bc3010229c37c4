"""The server with two fixed functions, without Redis, a store or learning."""

import asyncio
import sys
from collections.abc import Mapping

from kserve import ModelRepository

from libra_predictor.model import FunctionModel
from libra_predictor.published import Answers, Published, Record, Stage
from libra_predictor.server import serve
from libra_predictor.settings import parse
from libra_predictor.tables import StepTable, constant

MODELLED = Published(
    function="default/thumb-00001",
    configuration="default/thumb",
    version=1_700_000_000_123,
    stage=Stage.DRIFTED,
    reason="3 of the last 15 calls needed more than 100% of what was answered",
    answers=Answers(
        cpu_milli=StepTable((1000, 50_000), (200, 600, 1900)),
        memory_bytes=constant(128 << 20),
        duration_ms=StepTable((50_000,), (20, 95)),
        unknown=(1900, 128 << 20, 20),
        cpu_time_us=StepTable((9000,), (850, 74_000)),
        unknown_cpu_time_us=4200,
        largest_size=80_000,
    ),
    offset=(300, 64 << 20),
    largest=(2000, 1 << 30),
    observations=140,
    censored=3,
    cpu=Record("xgboost", 60, 1, 0.25),
    memory=Record("histogram", 60, 0, 0.5),
    duration=Record("xgboost", 60, 14, -0.1),
    gate=(0.95, 0.91, 0.4),
    cpu_time=Record("xgboost", 60, 31, 0.125),
)
PROFILED = Published(
    function="default/new-00001",
    configuration="",
    version=1_700_000_000_456,
    stage=Stage.PROFILING,
    reason="3 of 12 observations: use the user allocation",
    answers=Answers(constant(0), constant(0), constant(0), (0, 0, 0), constant(3100), 3100),
    offset=(0, 0),
    largest=(2000, 1 << 30),
    observations=3,
    censored=0,
    cpu=Record("none"),
    memory=Record("none"),
    duration=Record("none"),
    gate=None,
    cpu_time=Record("histogram", 1, 0, 0.5),
)


class Fixed:
    """A source of these two functions. Ready from the start."""

    ready = True

    def __init__(self, repository: ModelRepository) -> None:
        self._functions = {published.function: published for published in (MODELLED, PROFILED)}
        self._stopping = asyncio.Event()
        for published in self._functions.values():
            repository.update(FunctionModel(published))

    def functions(self) -> Mapping[str, Published]:
        return self._functions

    async def run(self) -> None:
        await self._stopping.wait()

    def stop(self) -> None:
        self._stopping.set()


if __name__ == "__main__":
    models = ModelRepository()
    serve(parse(sys.argv[1:]), models, Fixed(models))
