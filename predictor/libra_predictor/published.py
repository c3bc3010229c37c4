"""The predictor's answers for a function at one moment: immutable, and all that a replica needs to serve."""

from dataclasses import dataclass, replace
from enum import StrEnum

from libra_predictor.observations import MAX_SIZE, UNKNOWN_SIZE
from libra_predictor.tables import StepTable, constant, merged

_NOT_PREDICTED = constant(0)


class Stage(StrEnum):
    """The life of a function."""

    PROFILING = "profiling"  # too few observations: no prediction, or the previous revision's answers
    MODELLED = "modelled"
    DRIFTED = "drifted"  # calls needed more than was learned lately; the offset holds until a refit helps


@dataclass(frozen=True, slots=True)
class Answers:
    """A function's step tables, without its offset. The value 0 means that there is no prediction."""

    cpu_milli: StepTable
    memory_bytes: StepTable
    duration_ms: StepTable
    unknown: tuple[int, int, int]  # cpu_milli, memory_bytes, duration_ms of an input of unknown size
    # The median, which orders invocations. Nothing is lent by it, so it needs no offset and can be there
    # before the others are.
    cpu_time_us: StepTable = _NOT_PREDICTED
    unknown_cpu_time_us: int = 0
    # Bytes of the largest input learned from; UNKNOWN_SIZE if no size was known. Larger inputs get its
    # answer: invocations may borrow up to that but, as they may need more, lend nothing.
    largest_size: int = MAX_SIZE

    def at(self, size: int) -> tuple[int, int, int]:
        if size == UNKNOWN_SIZE:
            return self.unknown
        return self.cpu_milli.at(size), self.memory_bytes.at(size), self.duration_ms.at(size)

    def cpu_time_at(self, size: int) -> int:
        """The CPU time in microseconds."""
        return self.unknown_cpu_time_us if size == UNKNOWN_SIZE else self.cpu_time_us.at(size)


@dataclass(frozen=True, slots=True)
class Record:
    """How the answers of one resource did on calls that they had not learned from."""

    estimator: str
    calls: int = 0
    under_predicted: int = 0  # calls whose peak, seen or censored, needed a larger option than was answered
    # The mean of answer - option needed, in options; for a duration, of answer / actual - 1; for a CPU time,
    # of log2(answer / used).
    mean_error: float = 0.0


_NO_RECORD = Record("none")


@dataclass(frozen=True, slots=True)
class Published:
    """The answers of a function, with all that explains them."""

    function: str  # namespace/revision
    configuration: str  # namespace/configuration, or empty when it is not known
    version: int  # grows with every change of the answers; Unix milliseconds of the newest observation
    stage: Stage
    reason: str  # why this stage, for people
    answers: Answers
    offset: tuple[int, int]  # millicores and bytes to add to an answer, not negative
    largest: tuple[int, int]  # millicores and bytes; the offset raises no answer beyond them
    observations: int  # that the answers were learned from
    censored: int  # those of them whose demand could not be seen
    cpu: Record
    memory: Record
    duration: Record
    # The paper's gate (LIBRA, section 4.3), reported but not used: CPU accuracy, memory accuracy and R² of
    # the duration, of the models on held-out calls.
    gate: tuple[float, float, float] | None
    cpu_time: Record = _NO_RECORD

    def at(self, size: int) -> tuple[int, int, int]:
        """cpu_milli, memory_bytes and duration_ms of an input of size bytes, or UNKNOWN_SIZE."""
        cpu, memory, duration = self.answers.at(size)
        return (
            _raised(cpu, self.offset[0], self.largest[0]),
            _raised(memory, self.offset[1], self.largest[1]),
            duration,
        )

    def is_anew(self, known: "Published") -> bool:
        """Whether this is of a learner that began with nothing on the function, and known is not."""
        return self.stage is Stage.PROFILING and known.stage is not Stage.PROFILING

    def answers_with_offset(self) -> Answers:
        """The answers raised by the offset, for a function that begins with them."""
        answers, (cpu, memory, duration) = self.answers, self.answers.unknown
        return replace(
            answers,
            cpu_milli=self._with_offset(answers.cpu_milli, 0),
            memory_bytes=self._with_offset(answers.memory_bytes, 1),
            unknown=(
                _raised(cpu, self.offset[0], self.largest[0]),
                _raised(memory, self.offset[1], self.largest[1]),
                duration,
            ),
        )

    def _with_offset(self, table: StepTable, resource: int) -> StepTable:
        offset, largest = self.offset[resource], self.largest[resource]
        return merged(table.thresholds, [_raised(value, offset, largest) for value in table.values])


def _raised(raw: int, offset: int, largest: int) -> int:
    return 0 if raw == 0 else max(raw, min(raw + offset, largest))
