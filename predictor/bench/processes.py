"""Real processes to measure: Redis and the predictor."""

import contextlib
import http.client
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import redis

from bench.calls import NotMeasuredError

ROOT = Path(__file__).parents[2]
WAIT_SECONDS = 120.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Predictor:
    """A running predictor."""

    pid: int
    http_port: int


def can_pin() -> bool:
    return len(os.sched_getaffinity(0)) > 1 and shutil.which("taskset") is not None


def core(pinned: bool, number: int) -> list[str]:
    """The predictor has the first core that this process may use, all else the second."""
    return ["taskset", "-c", str(sorted(os.sched_getaffinity(0))[number])] if pinned else []


@contextlib.contextmanager
def running(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(  # noqa: S603
                command, cwd=ROOT / "predictor", stdout=output, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise NotMeasuredError(f"{command[0]}: {error}") from error
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def eventually(what: str, process: subprocess.Popen[bytes], log: Path, probe: Callable[[], T | None]) -> T:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NotMeasuredError(
                f"waiting until {what}: the process ended with {process.returncode}, see {log}"
            )
        if (found := probe()) is not None:
            return found
        time.sleep(0.1)
    raise NotMeasuredError(f"waiting until {what}: not within {WAIT_SECONDS:.0f} s, see {log}")


@contextlib.contextmanager
def redis_server(out: Path, pinned: bool, options: Sequence[str]) -> Iterator[int]:
    """Runs Redis, and yields its port."""
    port, log = free_port(), out / "redis.log"
    server = shutil.which("redis-server", path=f"{ROOT / 'bin'}:{os.environ.get('PATH', '')}")
    command = [*core(pinned, 1), server or "redis-server", *options]
    command += ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(out)]
    with running(command, log) as process:
        with redis.Redis(host="127.0.0.1", port=port, protocol=2) as client:

            def answers() -> bool | None:
                with contextlib.suppress(redis.exceptions.RedisError):
                    return bool(client.ping())
                return None

            eventually("redis-server answers", process, log, answers)
        yield port


@contextlib.contextmanager
def predictor(out: Path, redis_port: int, pinned: bool, *options: str) -> Iterator[Predictor]:
    """Runs the predictor, and yields it once it is ready."""
    http_port, log = free_port(), out / "predictor.log"
    command = [
        *(*core(pinned, 0), sys.executable, "-m", "libra_predictor"),
        *("--redis-addr", f"127.0.0.1:{redis_port}", "--http-port", str(http_port), *options),
    ]
    with running(command, log) as process:
        eventually(
            "the predictor is ready",
            process,
            log,
            lambda: asked(http_port, "GET", "/v2/health/ready")[0] == 200 or None,
        )
        yield Predictor(process.pid, http_port)


def asked(http_port: int, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    """Sends a request; returns status and body. Status 0 means that there was no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=10)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
