"""The options of the server: command line first, then environment, then default."""

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\s\[\]]+):(\d{1,5})")


def split_address(address: str) -> tuple[str, int]:
    """Takes "host:port" or "[IPv6]:port" apart."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 65536:
        raise ValueError("accepted is host:port, with a port from 1 to 65535")
    return match[1].strip("[]"), int(match[2])


def _address(address: str) -> str:
    split_address(address)
    return address


class Settings(BaseModel):
    """Each field is the option --its-name and the environment variable LIBRA_ITS_NAME."""

    model_config = ConfigDict(frozen=True)

    redis_addr: Annotated[str, AfterValidator(_address)] = Field(
        "redis.libra-system.svc.cluster.local:6379",
        description="host:port of Redis",
    )
    http_port: int = Field(8080, ge=1, le=65535, description="port of the REST server")
    min_observations: int = Field(12, ge=1, description="usable observations before a function has a model")
    window: int = Field(
        200, ge=1, le=100_000, description="usable observations, the last ones, to learn a function from"
    )
    max_functions: int = Field(
        1000, ge=1, description="functions to keep; past it the one not observed for longest is dropped"
    )
    refit_interval_seconds: float = Field(
        1.0, ge=0.1, le=3600, description="least seconds between two refits of a function"
    )
    largest_cpu_milli: int = Field(
        2000, ge=100, description="most CPU, in millicores, to try for a function throttled at its limit"
    )
    largest_memory_bytes: int = Field(
        1 << 30, ge=1 << 26, description="most memory, in bytes, to try for a function near its limit"
    )


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def _variable(field: str) -> str:
    return "LIBRA_" + field.upper()


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Settings:
    """Reads the settings; on mistakes prints all of them at once and exits with 2."""
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
                f"{_flag(str(e['loc'][0]))} (or {_variable(str(e['loc'][0]))}) is {e['input']!r}: {e['msg']}"
                for e in error.errors()
            )
        )
