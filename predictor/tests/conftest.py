import asyncio
import contextlib
import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest
import redis
from hypothesis import HealthCheck, settings
from redis.exceptions import ConnectionError as RedisConnectionError

PREDICTOR = Path(__file__).parents[1]
WAIT_SECONDS = 60.0
STREAM = "libra:observations"

T = TypeVar("T")

# No deadline: how long an example takes depends on the machine, which is busy.
settings.register_profile("libra", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("libra")


def eventually(what: str, probe: Callable[[], T | None]) -> T:
    """Polls until the probe has an answer; the deadline is only there to end a broken run."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        answer = probe()
        if answer is not None:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {WAIT_SECONDS:.0f} s")


async def in_time(what: str, probe: Callable[[], bool]) -> None:
    """Like eventually, beside other tasks of the loop."""
    async with asyncio.timeout(WAIT_SECONDS):
        while not probe():  # noqa: ASYNC110  # what is waited for has no event
            await asyncio.sleep(0.02)
    assert probe(), what


def free_port() -> int:
    """A free port below those that the kernel gives to clients, so that a server can take it later."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("0.0.0.0", port))  # noqa: S104
            return port
    raise AssertionError("none of 100 ports from 20000 to 31999 is free")


def stop(process: subprocess.Popen[bytes]) -> int:
    """Ends a process of ours by its own id; returns its exit code."""
    process.terminate()
    try:
        return process.wait(WAIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(WAIT_SECONDS)


def observation(**changes: Any) -> dict[str, Any]:
    """An api.Observation as Go writes it, the fields of its embedded Ended inline."""
    return {
        "id": "b1946ac9",
        "function": "default/thumb-00001",
        "configuration": "",
        "pod": "default/thumb-00001-deployment-6d4cf56db6-x7k2p",
        "size": 4096,
        "duration_ns": 120_000_000,
        "predicted": {"cpu_milli": 0, "memory_bytes": 0},
        "lent": {"cpu_milli": 0, "memory_bytes": 0},
        "borrowed": {"cpu_milli": 0, "memory_bytes": 0},
        "alone": True,
        "first": False,
        "status": 200,
        "peak": {"cpu_milli": 250, "memory_bytes": 50 << 20},
        "cpu_time_ns": 22_000_000,
        "limit": {"cpu_milli": 1000, "memory_bytes": 256 << 20},
        "limit_at_peak": {"cpu_milli": 1000, "memory_bytes": 256 << 20},
        "throttled_share": 0,
    } | changes


class RedisServer:
    """A real redis-server on a loopback port, without a disk. options override the arguments before them."""

    def __init__(self, binary: str, directory: Path, *options: str, **client: Any) -> None:
        self.port = free_port()
        self._command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(directory)]
        self._command += ["--save", "", "--appendonly", "no", *options]
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis(host="127.0.0.1", port=self.port, protocol=2, **client)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with (self._directory / "redis.log").open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=subprocess.STDOUT)
        eventually("redis-server answers", self._answers)

    def _answers(self) -> bool | None:
        assert self._process is not None
        assert self._process.poll() is None, (self._directory / "redis.log").read_text()
        try:
            return bool(self.client.ping())
        except RedisConnectionError:
            return None

    def stop(self) -> None:
        if self._process is not None:
            stop(self._process)
            self._process = None

    def observe(self, **changes: Any) -> None:
        self.client.xadd(STREAM, {"v": "1", "data": json.dumps(observation(**changes))})


class Server:
    """A real server process of the predictor."""

    def __init__(self, module: str, options: Sequence[str], log: Path, **environment: str) -> None:
        self.port = free_port()
        self._log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, "--http-port", str(self.port), *options],
                cwd=PREDICTOR,
                env=os.environ | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def log(self) -> str:
        return self._log.read_text()

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Sends body as JSON; returns status and body. Status 0 means that nothing listens."""
        raw = None if body is None else json.dumps(body).encode()
        return self.send(method, path, raw, {"Content-Type": "application/json"})

    def send(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Sends a request; returns status and body. Status 0 means that nothing listens."""
        assert self.process.poll() is None, self.log()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            return response.status, response.read()
        except ConnectionRefusedError:
            return 0, b""
        finally:
            connection.close()

    def listens(self) -> None:
        eventually("the server listens", lambda: self.ask("GET", "/v2/health/live")[0] == 200 or None)

    def is_ready(self) -> bool:
        return self.ask("GET", "/v2/health/ready")[0] == 200

    def gets_ready(self) -> None:
        eventually("the server is ready", lambda: self.is_ready() or None)

    def infer(self, model: str, size: object = 4096, **changes: object) -> tuple[int, Any]:
        tensor = {"name": "size", "shape": [1], "datatype": "INT64", "data": [size]} | changes
        status, body = self.ask("POST", f"/v2/models/{model}/infer", {"inputs": [tensor]})
        return status, json.loads(body)

    def prediction(self, model: str, size: int = 4096) -> dict[str, Any]:
        """Waits until the function is no longer profiled; returns its outputs by name and its parameters."""

        def probe() -> Any:
            status, answer = self.infer(model, size)
            assert status in (200, 404), answer
            return answer if status == 200 and answer["parameters"]["stage"] != "profiling" else None

        answer = eventually(f"{model} has a model", probe)
        return {output["name"]: output["data"] for output in answer["outputs"]} | {**answer["parameters"]}

    def stop(self) -> int:
        return stop(self.process)


class PredictorServer(Server):
    """The predictor itself. options override those set here."""

    def __init__(self, redis_address: str, log: Path, *options: str) -> None:
        quick = ("--refit-interval-seconds", "0.1", "--save-interval-seconds", "0.1", "--max-functions", "3")
        super().__init__("libra_predictor", ["--redis-addr", redis_address, *quick, *options], log)


class PublishedServer(Server):
    """The server around the functions of published_server.py."""

    def __init__(self, log: Path, **environment: str) -> None:
        super().__init__("tests.published_server", [], log, **environment)


@pytest.fixture
def redis_binary() -> str:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.fail("there is no redis-server on the PATH: apt-get install redis-server", pytrace=False)
    return binary


@pytest.fixture
def redis_server(redis_binary: str, tmp_path: Path) -> Iterator[RedisServer]:
    """A redis-server, not yet started."""
    server = RedisServer(redis_binary, tmp_path)
    yield server
    server.client.close()
    server.stop()


@pytest.fixture
def start_predictor(redis_server: RedisServer, tmp_path: Path) -> Iterator[Callable[..., PredictorServer]]:
    """Starts predictors, with any more options, on the Redis of the test."""
    servers: list[PredictorServer] = []

    def start(*options: str) -> PredictorServer:
        log = tmp_path / f"predictor-{len(servers)}.log"
        servers.append(PredictorServer(redis_server.address, log, *options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="module")
def published_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PublishedServer]:
    server = PublishedServer(tmp_path_factory.mktemp("published") / "server.log")
    try:
        server.gets_ready()
        yield server
    finally:
        server.stop()
