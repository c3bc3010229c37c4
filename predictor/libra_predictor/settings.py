"""The options of the server: command line first, then environment, then default."""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

_URL = re.compile(r"(?:(rediss?(?:-sentinel)?)://)?([^/?#]*)(?:/([^/?#\s]+))?")
_HOST_PORT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:,@\s\[\]]+):(\d{1,5})")

ACCEPTED = (
    "host:port, or redis://host:port, or rediss://host:port with TLS, each with several comma-separated"
    " host:port for a Redis Cluster; or redis-sentinel://host:port,host:port/name (rediss-sentinel:// with"
    " TLS) for the Sentinels of the primary name"
)


@dataclass(frozen=True, slots=True)
class Address:
    """Where Redis is. primary is its name at the Sentinels in hosts, None if hosts are Redis itself."""

    hosts: tuple[tuple[str, int], ...]
    tls: bool
    primary: str | None


def parse_address(address: str) -> Address:
    """Parses an address. Raises ValueError, which never repeats a password in the address."""
    if "@" in address:
        raise ValueError(
            f"want {ACCEPTED}; user and password are read from the files username and password of the"
            " folder of credentials"
        )
    url = _URL.fullmatch(address)
    if url is not None:
        scheme, primary = url[1] or "redis", url[3]
        matches = [_HOST_PORT.fullmatch(part) for part in url[2].split(",")]
        hosts = tuple(
            (match[1].strip("[]"), int(match[2])) for match in matches if match and 0 < int(match[2]) < 65536
        )
        if len(hosts) == len(matches) and scheme.endswith("-sentinel") == (primary is not None):
            return Address(hosts, scheme.startswith("rediss"), primary)
    raise ValueError(f"want {ACCEPTED}")


def _address(address: str) -> str:
    parse_address(address)
    return address


def _folder(path: str) -> str:
    if path and not Path(path).is_dir():
        raise ValueError(
            "want a folder with the files username, password and ca.crt, each of which may be missing"
        )
    return path


def _store(store: str) -> str:
    if store != "redis" and re.match(r"[a-z0-9]+://", store) is None:
        raise ValueError("want redis or a URI with a scheme: file://, s3://, gs:// or az://")
    return store


class Settings(BaseModel):
    """Each field is the option --its-name and the environment variable LIBRA_ITS_NAME."""

    model_config = ConfigDict(frozen=True)

    redis_addr: Annotated[str, AfterValidator(_address)] = Field(
        "redis.libra-system.svc:6379",
        description="host:port of Redis, or its URL",
    )
    redis_credentials: Annotated[str, AfterValidator(_folder)] = Field(
        "",
        description="folder with the files username, password and ca.crt for Redis, each of which may be"
        " missing",
    )
    http_port: int = Field(8080, ge=1, le=65535, description="port of the server")
    role: Literal["auto", "serve"] = Field(
        "auto", description="auto learns when no other replica does; serve never learns"
    )
    store: Annotated[str, AfterValidator(_store)] = Field(
        "redis",
        description="where to keep models: redis, or a URI such as file:///var/lib/libra or s3://bucket/prefix",
    )
    estimator: Literal["auto", "moving-window"] = Field(
        "auto",
        description="auto picks the best for each function, as measured; moving-window is for experiments",
    )
    durations: Literal["predicted", "unlimited"] = Field(
        "predicted",
        description="unlimited, for experiments, predicts that every invocation lasts a day, so that no loan"
        " depends on when an invocation will end",
    )
    min_observations: int = Field(12, ge=1, description="usable observations before a function has a model")
    window: int = Field(
        200, ge=1, le=100_000, description="most recent usable observations to learn a function from"
    )
    refit_every: int = Field(
        20,
        ge=1,
        description="observations of a function between two refits; more while many functions are busy",
    )
    refit_interval_seconds: float = Field(
        1.0, ge=0.1, le=3600, description="minimum seconds between two refits of a function"
    )
    save_interval_seconds: float = Field(
        10.0,
        ge=0.1,
        le=3600,
        description="seconds between two saves of observations; answers that change are saved at once",
    )
    max_functions: int = Field(
        10_000, ge=1, description="functions to keep; beyond that, the one observed least recently is dropped"
    )
    retire_days: float = Field(
        14, gt=0, description="days without an observation after which to drop a function"
    )
    cpu_step_milli: int = Field(100, ge=1, description="CPU step between allocation options, in millicores")
    memory_step_bytes: int = Field(
        64 << 20, ge=1 << 20, description="memory step between allocation options, in bytes"
    )
    largest_cpu_milli: int = Field(
        2000, ge=100, description="most CPU, in millicores, to try for a function throttled at its limit"
    )
    largest_memory_bytes: int = Field(
        1 << 30, ge=1 << 26, description="most memory, in bytes, to try for a function near its limit"
    )


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def _shown(given: object) -> object:
    """The given value, without the password that a URL may have in it."""
    return re.sub(r".*@", "…@", given, flags=re.DOTALL) if isinstance(given, str) else given


def _variable(field: str) -> str:
    return "LIBRA_" + field.upper()


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """Reads the settings. If there are mistakes, prints all of them at once and exits with 2."""
    parser = argparse.ArgumentParser(
        prog="python -m libra_predictor", description="Libra's predictor.", allow_abbrev=False
    )
    for name, field in Settings.model_fields.items():
        parser.add_argument(
            _flag(name),
            metavar=name.rsplit("_", 1)[-1].upper(),
            default=environment.get(_variable(name), field.default),
            help=f"{field.description} (env {_variable(name)}, default {field.default})",
        )
    try:
        return Settings.model_validate(vars(parser.parse_args(arguments)))
    except ValidationError as error:
        parser.error(
            "; ".join(
                f"{_flag(str(e['loc'][0]))} (or {_variable(str(e['loc'][0]))}) is {_shown(e['input'])!r}:"
                f" {e['msg']}"
                for e in error.errors()
            )
        )
