"""TLS, users, clusters and Sentinels, against real ones."""

import asyncio
import datetime
import hashlib
import ipaddress
import shlex
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import PREDICTOR, PredictorServer, RedisServer, eventually, free_port, in_time
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from redis.exceptions import NoPermissionError
from test_store import function_state

from libra_predictor.announcements import announce, announcement, announcements
from libra_predictor.connection import UNREACHABLE, Connection, explain
from libra_predictor.lock import FENCE, LEASE_SECONDS, LOCK, Lock
from libra_predictor.observations import STREAM
from libra_predictor.store import RedisStore
from libra_predictor.stream import Stream

USERS = PREDICTOR.parent / "manifests/components/redis-auth/users.acl"
USER = "predictor"
PASSWORD, ADMINS = "the predictor's", "the admin's"


def issue(folder: Path) -> None:
    """Writes ca.crt, and tls.crt and tls.key of 127.0.0.1."""

    def named(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])

    def builder(subject: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("CA of a test"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
        )

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = builder("CA of a test", ca_key).add_extension(
        x509.BasicConstraints(True, None), critical=True
    )
    loopback = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    server = builder("redis", key).add_extension(loopback, critical=False)
    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(authority.sign(ca_key, hashes.SHA256()).public_bytes(pem))
    (folder / "tls.crt").write_bytes(server.sign(ca_key, hashes.SHA256()).public_bytes(pem))
    (folder / "tls.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def hashed(password: str) -> str:
    return "#" + hashlib.sha256(password.encode()).hexdigest()


def shipped() -> list[str]:
    """The rules of the predictor's user; each pair of parentheses is one rule."""
    line = next(line for line in USERS.read_text().splitlines() if line.startswith(f"user {USER} "))
    quoted = line.replace("(", "'(").replace(")", ")'")
    return shlex.split(quoted)[2:]


class Secured(RedisServer):
    """A Redis with TLS only, and the predictor's user as shipped."""

    def __init__(self, binary: str, directory: Path, *options: str) -> None:
        issue(directory)
        users = directory / "users.acl"
        users.write_text(
            f"user default off\nuser admin on {hashed(ADMINS)} ~* &* +@all\n"
            f"user {USER} {hashed(PASSWORD)} {' '.join(shipped())}\n"
        )
        files = {"--tls-cert-file": "tls.crt", "--tls-key-file": "tls.key", "--tls-ca-cert-file": "ca.crt"}
        tls = [part for option, name in files.items() for part in (option, str(directory / name))]
        super().__init__(
            binary,
            directory,
            *("--aclfile", str(users), *tls, "--tls-auth-clients", "no", *options),
            **{
                "ssl": True,
                "ssl_ca_certs": str(directory / "ca.crt"),
                "username": "admin",
                "password": ADMINS,
            },
        )
        self._command += ["--tls-port", str(self.port), "--port", "0"]
        self.credentials = directory / "credentials"
        self.credentials.mkdir()
        (self.credentials / "ca.crt").write_bytes((directory / "ca.crt").read_bytes())
        (self.credentials / "username").write_text(f"{USER}\n")
        (self.credentials / "password").write_text(f"{PASSWORD}\n")

    @property
    def address(self) -> str:
        return f"rediss://127.0.0.1:{self.port}"

    def connect(self) -> Connection:
        return Connection(self.address, str(self.credentials))

    def command(self, *arguments: Any) -> Any:
        return self.client.execute_command(*arguments)  # type: ignore[no-untyped-call]

    def refused(self) -> list[str]:
        """The refusals that users met since the last call."""
        log: Any = self.client.acl_log(100)
        self.client.acl_log_reset()
        return [f"{entry['username']}: {entry['reason']} {entry['object']}" for entry in log]


@pytest.fixture
def secured(redis_binary: str, tmp_path: Path) -> Iterator[Secured]:
    server = Secured(redis_binary, tmp_path)
    server.start()
    yield server
    server.client.close()
    server.stop()


async def learn(connection: Connection, append: Callable[[], object]) -> None:
    """Sends everything that a learner and a replica send to Redis."""
    lock, store = Lock(connection), RedisStore(connection)
    hold = await lock.acquire(above=7)
    assert hold is not None
    # As keep does after a third of the lease.
    assert await lock._renew(keys=[LOCK], args=[hold.token, round(1e3 * LEASE_SECONDS)])
    stream = Stream(connection, hold.fence)
    await stream.open()
    append()
    entries = await stream.read()
    assert entries
    await stream.check()
    await stream.acknowledge([entry.id for entry in entries])
    async for _ in stream.history():
        pass
    append()
    await stream.wait()
    state = function_state()
    async with aclosing(announcements(connection)) as heard:
        assert await anext(heard) is None
        message = announcement([state.published])
        await announce(connection, message)
        async for said in heard:
            if said is not None:
                assert said == message
                break
    await store.save([state], hold)
    assert (await store.load([state.name]))[state.name] == state
    assert (await store.index()).tokens
    await store.drop([state.name], hold)
    await lock.release(hold)


def sockets() -> int:
    """How many sockets this process has open."""
    return sum(fd.is_socket() for fd in Path("/proc/self/fd").iterdir())


def play(server: Secured, scene: Callable[[Connection, Callable[[], object]], Awaitable[None]]) -> None:
    async def run() -> None:
        server.command("PING")  # its client keeps that connection
        before = sockets()
        connection = server.connect()
        try:
            await scene(connection, server.observe)
        finally:
            await connection.close()
            # The client does not wait until a connection that was refused has ended its TLS.
            await in_time("end of all connections", lambda: sockets() <= before)

    asyncio.run(run())


def test_the_users_rights_are_enough_and_each_is_needed(secured: Secured) -> None:
    play(secured, learn)
    assert secured.refused() == []

    rules = shipped()
    commands = [
        (i, command)
        for i, rule in enumerate(rules)
        for command in rule.strip("()").split()
        if command[0] == "+"
    ]
    of_a_cluster = ("+cluster|slots", "+command")
    tried = 0
    for i, command in commands:
        if command in of_a_cluster:
            continue
        tried += 1
        less = list(rules)
        less[i] = " ".join(part for part in rules[i].strip("()").split() if part != command)
        if rules[i].startswith("("):
            less[i] = f"({less[i]})"
        changed = ["reset", hashed(PASSWORD), *(rule for rule in less if rule)]
        secured.command("ACL", "SETUSER", USER, *changed)
        secured.client.flushall()
        secured.client.script_flush()
        secured.refused()
        with suppress(Exception):  # what matters is what was refused
            play(secured, learn)
        assert secured.refused(), f"without {command} of {rules[i]} nothing was refused"
    assert tried > 20


def test_a_predictor_learns_as_its_user(secured: Secured, tmp_path: Path) -> None:
    server = PredictorServer(
        secured.address, tmp_path / "predictor.log", "--redis-credentials", str(secured.credentials)
    )
    try:
        server.gets_ready()
        for i in range(20):
            secured.observe(id=str(i))
        server.prediction("default.thumb-00001")
        assert secured.refused() == []
        assert PASSWORD not in server.log()
    finally:
        server.stop()


def test_a_password_that_changes_is_followed(secured: Secured) -> None:
    async def scene(connection: Connection, _: object) -> None:
        async def ask() -> str:
            try:
                await connection.client.get(FENCE)
            except UNREACHABLE as error:
                return str(error)
            return ""

        assert await ask() == ""
        secured.command("ACL", "SETUSER", USER, "resetpass", hashed("another"))
        secured.command("CLIENT", "KILL", "USER", USER)
        await ask()  # may find the connection that was killed
        told = await ask()
        assert "invalid username-password pair" in told
        assert PASSWORD not in told
        (secured.credentials / "password").write_text("another")
        assert await ask() == ""

    play(secured, scene)


@pytest.mark.parametrize(
    ("without", "content", "wanted"),
    [
        ("password", None, ["the file password is missing or empty"]),
        ("password", "hunter3", ["the user predictor of the file username", "invalid username-password"]),
        ("username", None, ["the user default, because the file username is missing", "invalid username"]),
        ("username", "nobody", ["the user nobody of the file username", "invalid username-password pair"]),
        ("username", "agent", ["the user agent", "want a user with the rights", "users.acl"]),
        ("username password", None, ["a folder with the files username and password", "required"]),
        ("ca.crt", None, ["the file ca.crt; without that file, the system's", "CERTIFICATE_VERIFY_FAILED"]),
        ("ca.crt", "another", ["want the CA of Redis in the file ca.crt: ", "CERTIFICATE_VERIFY_FAILED"]),
        ("ca.crt", "not one", ["want the CA of Redis in the file ca.crt: "]),
    ],
)
def test_what_is_wrong_with_credentials_is_told(
    secured: Secured,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    without: str,
    content: str | None,
    wanted: list[str],
) -> None:
    secured.command("ACL", "SETUSER", "agent", "on", hashed(PASSWORD))
    if content == "another":
        (tmp_path / "another").mkdir()
        issue(tmp_path / "another")
        content = (tmp_path / "another" / "ca.crt").read_text()
    for name in without.split():
        (secured.credentials / name).unlink()
        if content is not None:
            (secured.credentials / name).write_text(content)

    async def ask(connection: Connection, _: object) -> None:
        try:
            await connection.client.get(FENCE)
        except UNREACHABLE as error:
            connection.failed(error)

    play(secured, ask)
    for text in ["LIBRA_REDIS_CREDENTIALS (--redis-credentials) is", str(secured.credentials), *wanted]:
        assert caplog.text.count(text) == 1, caplog.text
    assert PASSWORD not in caplog.text
    assert "hunter3" not in caplog.text


def test_credentials_that_are_not_set_are_told(secured: Secured, caplog: pytest.LogCaptureFixture) -> None:
    async def ask() -> None:
        connection = Connection(secured.address)
        with pytest.raises(UNREACHABLE) as refused:
            await connection.client.get(FENCE)
        connection.failed(refused.value)
        await connection.close()

    asyncio.run(ask())
    assert "LIBRA_REDIS_CREDENTIALS (--redis-credentials) is not set: want the CA of Redis" in caplog.text


def test_without_credentials_no_file_is_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "username").write_text("nobody")
    monkeypatch.chdir(tmp_path)
    told = explain(NoPermissionError("this user may not run it"), "")
    assert "(--redis-credentials) is not set, with the user default: want a user" in told
    assert "the file username" not in told


def test_a_cluster(redis_binary: str, tmp_path: Path) -> None:
    options = ("--cluster-enabled", "yes", "--tls-cluster", "yes", "--cluster-announce-ip", "127.0.0.1")
    server = Secured(redis_binary, tmp_path, *options, "--cluster-port", str(free_port()))
    server.start()
    try:
        server.command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(
            "the cluster has a state",
            lambda: "cluster_state:ok" in str(server.command("CLUSTER", "INFO")) or None,
        )
        host = f"127.0.0.1:{server.port}"

        async def run() -> None:
            connection = Connection(f"rediss://{host},{host}", str(server.credentials))
            try:
                await learn(connection, server.observe)
                assert server.refused() == []
                server.stop()
                with pytest.raises(UNREACHABLE):
                    await connection.client.get(FENCE)
                server.start()
                await goes_on(connection)
            finally:
                await connection.close()

        asyncio.run(run())
    finally:
        server.client.close()
        server.stop()


async def goes_on(connection: Connection) -> None:
    async with asyncio.timeout(60):
        while True:
            with suppress(*UNREACHABLE):
                await connection.client.get(FENCE)
                return
            await asyncio.sleep(0.05)


def test_sentinel(redis_server: RedisServer, redis_binary: str, tmp_path: Path) -> None:
    redis_server.start()
    folder = tmp_path / "sentinel"
    folder.mkdir()
    config = folder / "sentinel.conf"
    config.write_text(f"sentinel monitor libra 127.0.0.1 {redis_server.port} 1\n")
    sentinel = RedisServer(redis_binary, folder, password="of Sentinel")  # noqa: S106
    sentinel._command = [
        *(redis_binary, str(config), "--sentinel", "--port", str(sentinel.port), "--bind", "127.0.0.1"),
        *("--dir", str(folder), "--requirepass", "of Sentinel"),
    ]
    (folder / "sentinel-password").write_text("of Sentinel\n")
    sentinel.start()

    async def run(name: str) -> None:
        connection = Connection(f"redis-sentinel://{sentinel.address}/{name}", str(folder))
        try:
            await learn(connection, redis_server.observe)
        finally:
            await connection.close()

    try:
        asyncio.run(run("libra"))
        assert redis_server.client.exists(STREAM)
        with pytest.raises(UNREACHABLE, match="No master found for 'another'"):
            asyncio.run(run("another"))
    finally:
        sentinel.client.close()
        sentinel.stop()


def test_an_address_of_the_other_kind_is_told(
    secured: Secured, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(address: str, hinted: str) -> None:
        caplog.clear()
        connection = Connection(address)
        with pytest.raises(UNREACHABLE) as refused:
            await connection.client.get(FENCE)
        connection.failed(refused.value)
        await connection.close()
        assert hinted in caplog.text

    redis_server.start()
    asyncio.run(ask(secured.address.replace("rediss:", "redis:"), "want rediss:// for it"))
    asyncio.run(ask(f"rediss://{redis_server.address}", "want redis:// for it"))
