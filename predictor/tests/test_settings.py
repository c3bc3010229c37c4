from pathlib import Path

import pytest

from libra_predictor.settings import Address, Settings, parse, parse_address


def test_option_before_environment_before_default() -> None:
    assert parse([], {}) == Settings.model_validate({})
    environment = {"LIBRA_REDIS_ADDR": "redis:1", "LIBRA_HTTP_PORT": "8090"}
    settings = parse(["--http-port", "8091"], environment)
    assert (settings.redis_addr, settings.http_port, settings.window) == ("redis:1", 8091, 200)


def test_all_mistakes_are_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        parse(["--http-port", "70000", "--window", "many"], {"LIBRA_REDIS_ADDR": "redis"})
    assert exited.value.code == 2
    told = capsys.readouterr().err
    assert "--redis-addr (or LIBRA_REDIS_ADDR) is 'redis': Value error, want host:port" in told
    assert "--http-port (or LIBRA_HTTP_PORT) is '70000': Input should be less than or equal to 65535" in told
    assert "--window (or LIBRA_WINDOW) is 'many': Input should be a valid integer" in told


def test_help_states_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"], {})
    told = " ".join(capsys.readouterr().out.split())
    for field in Settings.model_fields.values():
        assert f"default {field.default})" in told


@pytest.mark.parametrize(
    ("address", "parts"),
    [
        ("redis.libra-system.svc:6379", Address((("redis.libra-system.svc", 6379),), False, None)),
        ("10.0.0.1:1", Address((("10.0.0.1", 1),), False, None)),
        ("[::1]:65535", Address((("::1", 65535),), False, None)),
        ("redis://redis:6379", Address((("redis", 6379),), False, None)),
        ("rediss://redis:6379", Address((("redis", 6379),), True, None)),
        ("a:1,b:2", Address((("a", 1), ("b", 2)), False, None)),
        ("rediss://a:1,[::1]:2", Address((("a", 1), ("::1", 2)), True, None)),
        ("redis-sentinel://a:1,b:2/libra", Address((("a", 1), ("b", 2)), False, "libra")),
        ("rediss-sentinel://a:1/libra", Address((("a", 1),), True, "libra")),
    ],
)
def test_address(address: str, parts: Address) -> None:
    assert parse_address(address) == parts


# Addresses that Go refuses, too: pkg/redisconn.
@pytest.mark.parametrize(
    "address",
    [
        *("", "redis", "redis:", ":6379", "redis:0", "redis:65536", "::1:6379", "a b:1", "a:1,b", "a:1, b:2"),
        *("a:1,", "redis://", "redis://redis", "redis://redis:6379/3", "redis://redis:6379?db=3"),
        *("http://redis:6379", "redis-sentinel://a:1", "redis-sentinel://a:1/", "redis-sentinel://a:1/a/b"),
        "rediss:///run/redis.sock",
    ],
)
def test_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="want host:port"):
        parse_address(address)


@pytest.mark.parametrize(
    "address", ["redis://user:hunter2@redis:1", "redis://:hu/nter2@redis:1", "u:hunter2@r:1"]
)
def test_a_password_in_an_address_is_refused_and_not_repeated(
    address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(["--redis-addr", address], {})
    told = capsys.readouterr().err
    assert "files username and password" in told
    assert "nter2" not in told


def test_credentials_are_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["--redis-credentials", str(tmp_path)], {}).redis_credentials == str(tmp_path)
    with pytest.raises(SystemExit):
        parse(["--redis-credentials", str(tmp_path / "none")], {})
    assert "want a folder with the files username, password and ca.crt" in capsys.readouterr().err
