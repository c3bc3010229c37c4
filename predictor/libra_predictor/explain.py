"""Explains the answers for a function, to people and to a kubectl plugin."""

from collections.abc import Callable, Mapping
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from pydantic import BaseModel

from libra_predictor.model import model_name
from libra_predictor.observations import MAX_SIZE, UNKNOWN_SIZE
from libra_predictor.published import Published, Record, Stage

_PREFIX = "/libra/v1"
_GATE = 0.9  # of the paper: LIBRA, section 4.3

Functions = Callable[[], Mapping[str, Published]]


class Allocation(BaseModel):
    cpu_milli: int
    memory_bytes: int


class Answer(Allocation):
    """0 means that there is no prediction: the user allocation is used."""

    duration_ms: int
    cpu_time_us: int


class Records(BaseModel):
    cpu: Record
    memory: Record
    duration: Record
    cpu_time: Record


class Gate(BaseModel):
    """The paper's gate, which is reported but not used."""

    cpu_accuracy: float
    memory_accuracy: float
    duration_r2: float
    passed: bool


class Summary(BaseModel):
    """One function of the list."""

    name: str  # namespace/revision
    stage: Stage
    version: str
    estimators: dict[str, str]  # by resource: cpu, memory, duration, cpu_time
    observations: int


class FunctionList(BaseModel):
    functions: list[Summary]


class Explanation(BaseModel):
    """The answer for one size, and what it rests on."""

    name: str  # namespace/revision
    configuration: str
    model: str  # its name in the Open Inference Protocol
    version: str
    stage: Stage
    reason: str
    size: int | None  # bytes; null when it is unknown
    answer: Answer  # what is served: raw, raised by the offset
    raw: Answer
    offset: Allocation
    largest: Allocation
    largest_size: int  # bytes; an invocation with a larger input may borrow up to the answer, but not lend
    observations: int
    censored: int
    records: Records
    gate: Gate | None


def router(functions: Functions, why_unknown: Callable[[str], str]) -> APIRouter:
    """The routes over functions(), by name. why_unknown says why a function is missing."""
    routes = APIRouter(prefix=_PREFIX, tags=["explain"])

    @routes.get("/functions")
    async def listed() -> FunctionList:
        return FunctionList(functions=[_summary(published) for _, published in sorted(functions().items())])

    @routes.get("/functions/{namespace}/{revision}")
    async def explained(
        namespace: str,
        revision: str,
        size: Annotated[
            int | None, Query(ge=UNKNOWN_SIZE, le=MAX_SIZE, description="bytes of the input")
        ] = None,
    ) -> Explanation:
        name = f"{namespace}/{revision}"
        published = functions().get(name)
        if published is None:
            raise HTTPException(404, why_unknown(name))
        return _explanation(published, UNKNOWN_SIZE if size is None else size)

    return routes


def _summary(published: Published) -> Summary:
    return Summary(
        name=published.function,
        stage=published.stage,
        version=str(published.version),
        estimators={
            "cpu": published.cpu.estimator,
            "memory": published.memory.estimator,
            "duration": published.duration.estimator,
            "cpu_time": published.cpu_time.estimator,
        },
        observations=published.observations,
    )


def _explanation(published: Published, size: int) -> Explanation:
    return Explanation(
        name=published.function,
        configuration=published.configuration,
        model=model_name(published.function),
        version=str(published.version),
        stage=published.stage,
        reason=published.reason,
        size=None if size == UNKNOWN_SIZE else size,
        answer=_answer(published.at(size), published.answers.cpu_time_at(size)),
        raw=_answer(published.answers.at(size), published.answers.cpu_time_at(size)),
        offset=_allocation(published.offset),
        largest=_allocation(published.largest),
        largest_size=published.answers.largest_size,
        observations=published.observations,
        censored=published.censored,
        records=Records(
            cpu=published.cpu,
            memory=published.memory,
            duration=published.duration,
            cpu_time=published.cpu_time,
        ),
        gate=_gate(published.gate),
    )


def _answer(values: tuple[int, int, int], cpu_time_us: int) -> Answer:
    return Answer(cpu_milli=values[0], memory_bytes=values[1], duration_ms=values[2], cpu_time_us=cpu_time_us)


def _allocation(values: tuple[int, int]) -> Allocation:
    return Allocation(cpu_milli=values[0], memory_bytes=values[1])


def _gate(gate: tuple[float, float, float] | None) -> Gate | None:
    if gate is None:
        return None
    cpu, memory, duration = gate
    return Gate(
        cpu_accuracy=cpu, memory_accuracy=memory, duration_r2=duration, passed=all(v >= _GATE for v in gate)
    )
