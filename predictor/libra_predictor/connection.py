"""Connects to Redis, and reports when it goes away and comes back."""

import logging
import random
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import redis.asyncio
from opentelemetry.metrics import get_meter
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import AuthenticationError, NoPermissionError, RedisClusterException, RedisError

from libra_predictor.settings import parse_address

log = logging.getLogger(__name__)

UNREACHABLE = (RedisError, RedisClusterException, OSError)

_SETTING = "LIBRA_REDIS_CREDENTIALS (--redis-credentials)"

_CONNECT_SECONDS = 2.0
_REPLY_SECONDS = 5.0  # longer than any of our reads blocks
_LEAST_SECONDS, _MOST_SECONDS = 0.2, 5.0

_up = get_meter("libra_predictor").create_gauge(
    "libra.predictor.redis.up", description="1 when the last exchange with Redis succeeded, else 0."
)


class BackOff:
    """Seconds to wait before the next try, doubled at each, with jitter."""

    def __init__(self) -> None:
        self._delay = _LEAST_SECONDS

    def next(self) -> float:
        delay, self._delay = self._delay, min(2 * self._delay, _MOST_SECONDS)
        return delay * random.uniform(0.5, 1)  # noqa: S311

    def reset(self) -> None:
        self._delay = _LEAST_SECONDS


class Credentials(CredentialProvider):
    """User and password from files, read for each connection, so that changes of a Secret are followed."""

    def __init__(self, folder: str, username: str = "username", password: str = "password") -> None:  # noqa: S107
        self._username, self._password = Path(folder, username), Path(folder, password)

    def get_credentials(self) -> Any:
        username, password = _line(self._username), _line(self._password)
        if username and not password:
            raise AuthenticationError(
                f"{_SETTING} is {self._username.parent}: the file {self._username.name} names a user, and the"
                f" file {self._password.name} is missing or empty"
            )
        return (username, password) if username else (password,) if password else ()

    async def get_credentials_async(self) -> Any:
        return self.get_credentials()


def _line(path: Path) -> str:
    try:
        return path.read_text().rstrip("\r\n")
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        raise AuthenticationError(
            f"{_SETTING} is {path.parent}: the file {path.name} could not be read: {type(error).__name__}"
        ) from error


def explain(error: BaseException, credentials: str) -> str:
    """The error as text. If it is about the credentials, what is wrong with them comes first."""
    told = str(error)
    if _SETTING in told:
        return told
    setting = f"{_SETTING} is {credentials}" if credentials else f"{_SETTING} is not set"
    if isinstance(error, NoPermissionError):
        what = "want a user with the rights of manifests/components/redis-auth/users.acl"
        return f"{setting}, with the user {_user(credentials)}: {what}: {told}"
    if isinstance(error, AuthenticationError):
        if "Authentication required" in told:
            return f"{setting}: want a folder with the files username and password: {told}"
        what = "want a user that Redis has, and its password in the file password"
        return f"{setting}, with the user {_user(credentials)}: {what}: {told}"
    if "CERTIFICATE_VERIFY_FAILED" in told or "X509" in told:
        there = bool(credentials) and Path(credentials, "ca.crt").exists()
        instead = "" if there else "; without that file, the system's CAs count"
        return f"{setting}: want the CA of Redis in the file ca.crt{instead}: {told}"
    return told


def hint(error: BaseException, tls: bool) -> str:
    """A guess at what is wrong with the address of a Redis that has never answered."""
    told = str(error)
    if not tls and ("reset by peer" in told or "closed by server" in told):
        return "; a Redis that requires TLS does that: want rediss:// for it"
    if tls and isinstance(error, redis.exceptions.TimeoutError):
        return "; a Redis without TLS does that, too: want redis:// for it"
    return ""


def _user(credentials: str) -> str:
    if not credentials:
        return "default"
    with suppress(AuthenticationError):
        if name := _line(Path(credentials, "username")):
            return f"{name} of the file username"
    return "default, because the file username is missing or empty"


class Connection:
    """A client of Redis that logs once when Redis goes away, and once when it is back.

    It never retries by itself: the caller knows how long retries make sense. credentials is a folder with the
    files username, password and ca.crt and, for Sentinels that want a password, sentinel-username and
    sentinel-password. Each may be missing. The CA is read once.
    """

    def __init__(self, address: str, credentials: str = "") -> None:
        at = parse_address(address)
        self.address = address
        self._tls = at.tls
        self._credentials = credentials
        options: dict[str, Any] = {
            "socket_connect_timeout": _CONNECT_SECONDS,
            "socket_timeout": _REPLY_SECONDS,
            "driver_info": None,  # it would cost every new connection a round trip
        }
        if at.tls:
            options["ssl"] = True
            ca = Path(credentials, "ca.crt")
            if credentials and ca.exists():
                options["ssl_ca_certs"] = str(ca)
        own = options | {"protocol": 2, "retry": Retry(NoBackoff(), 0)}
        if credentials:
            own["credential_provider"] = Credentials(credentials)
        self._sentinel: Sentinel | None = None
        if at.primary is not None:
            if credentials:
                options["credential_provider"] = Credentials(
                    credentials, "sentinel-username", "sentinel-password"
                )
            options["retry"] = Retry(NoBackoff(), 0)
            self._sentinel = Sentinel(at.hosts, sentinel_kwargs=options, **own)  # type: ignore[no-untyped-call]
            self.client: redis.asyncio.Redis = self._sentinel.master_for(at.primary)
        elif len(at.hosts) > 1:
            nodes = [ClusterNode(host, port) for host, port in at.hosts]
            # RedisCluster has all of Redis' commands that are used here.
            self.client = cast(redis.asyncio.Redis, RedisCluster(startup_nodes=nodes, **own))
        else:
            self.client = redis.asyncio.Redis(host=at.hosts[0][0], port=at.hosts[0][1], **own)
        self._away = False
        self._has_answered = False

    def failed(self, error: Exception) -> None:
        if not self._away:
            told = explain(error, self._credentials)
            if not self._has_answered:
                told += hint(error, self._tls)
            log.warning("Redis at %s is away (%s): serving what was learned", self.address, told)
        self._away = True
        _up.set(0)

    def worked(self) -> None:
        if self._away:
            log.info("Redis at %s is back", self.address)
        self._away = False
        self._has_answered = True
        _up.set(1)

    async def close(self) -> None:
        await self.client.aclose()
        if self._sentinel is not None:
            await self._sentinel.aclose()
