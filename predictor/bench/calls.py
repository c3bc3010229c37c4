"""Makes the measured calls from which all else is computed, and keeps them."""

import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Self

from bench.workloads import WORKLOADS
from bench.zygote import Call

Say = Callable[[str], None]
Calls = dict[int, dict[str, list[Call]]]  # by seed and function, in the order that they ran

_PROGRESS_SECONDS = 15.0
_SOURCES = Path(__file__).parent
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108


class NotMeasuredError(Exception):
    """The bench could not measure something; the message says what and why."""


@dataclass
class _Function:
    """A zygote and the inputs that it is called with."""

    name: str
    process: subprocess.Popen[str]
    stdin: IO[str]
    stdout: IO[str]
    body: Path
    rng: random.Random

    @classmethod
    def start(cls, name: str, seed: int, directory: Path) -> Self:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "bench.zygote", name],
            cwd=_SOURCES.parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if process.stdin is None or process.stdout is None:
            raise NotMeasuredError(f"function {name} has no pipes")
        rng = random.Random(f"{seed}/{name}")  # noqa: S311
        function = cls(name, process, process.stdin, process.stdout, directory / name, rng)
        function._ask()
        return function

    def call(self) -> Call:
        return Call(**json.loads(self._ask()))

    def _ask(self) -> str:
        self.body.write_bytes(WORKLOADS[self.name].make(self.rng))
        self.stdin.write(f"{self.body}\n")
        self.stdin.flush()
        if not (line := self.stdout.readline()):
            raise NotMeasuredError(f"function {self.name} ended: see its traceback above")
        return line

    def stop(self) -> None:
        self.stdin.close()
        self.process.wait()


def digest() -> str:
    """A digest of all that decides the measurements: functions, method, Python and the number of cores."""
    found = hashlib.sha256(f"{os.cpu_count()} {sys.version}".encode())
    for source in sorted([*(_SOURCES / "workloads").glob("*.py"), _SOURCES / "zygote.py"]):
        found.update(source.read_bytes())
    return found.hexdigest()[:12]


def measured(
    directory: Path, seeds: Sequence[int], count: int, fresh: bool, seconds: float, say: Say
) -> tuple[Calls, float]:
    """Returns count calls of each function for each seed, and the seconds that it took to make them.

    Calls that were measured before are read from the directory. Raises NotMeasuredError if making them takes
    longer than seconds; the seeds that are complete by then are kept.
    """
    deadline = time.monotonic() + seconds
    calls: Calls = {}
    began = time.monotonic()
    for seed in seeds:
        kept = directory / f"calls-{digest()}-seed{seed}-{count}.json"
        if kept.exists() and not fresh:
            say(f"seed {seed}: read {count} earlier calls of each function from {kept.name}")
            read = json.loads(kept.read_text())
            calls[seed] = {name: [Call(**call) for call in read[name]] for name in WORKLOADS}
            continue
        calls[seed] = _make(seed, count, deadline, say)
        partial = kept.with_suffix(".partial")
        partial.write_text(
            json.dumps({name: [asdict(call) for call in made] for name, made in calls[seed].items()})
        )
        partial.rename(kept)
    return calls, time.monotonic() - began


def _make(seed: int, count: int, deadline: float, say: Say) -> dict[str, list[Call]]:
    """Calls the functions in turn, so that a brief disturbance of the machine hits all of them alike."""
    where = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
    made: dict[str, list[Call]] = {name: [] for name in WORKLOADS}
    with tempfile.TemporaryDirectory(dir=where) as bodies:
        functions: list[_Function] = []
        try:
            functions += (_Function.start(name, seed, Path(bodies)) for name in WORKLOADS)
            began = told = time.monotonic()
            for i in range(count):
                for function in functions:
                    made[function.name].append(function.call())
                now = time.monotonic()
                if now - told > _PROGRESS_SECONDS:
                    left = (now - began) / (i + 1) * (count - i - 1)
                    say(f"seed {seed}: {i + 1} of {count} calls of each function, {left:.0f} s left")
                    told = now
                if now > deadline:
                    raise NotMeasuredError(
                        f"seed {seed}: only {i + 1} of {count} calls of each function in the time allowed;"
                        " allow more with --minutes, or use fewer --seeds"
                    )
        finally:
            for function in functions:
                function.stop()
    say(f"seed {seed}: {count * len(made)} calls in {time.monotonic() - began:.0f} s")
    return made
