import pytest

from libra_predictor.settings import Settings, parse, split_address


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
    assert "--redis-addr (or LIBRA_REDIS_ADDR) is 'redis': Value error, accepted is host:port" in told
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
        ("redis.libra-system.svc:6379", ("redis.libra-system.svc", 6379)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
    ],
)
def test_address(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize(
    "address", ["", "redis", "redis:", ":6379", "redis:0", "redis:65536", "::1:6379", "a b:1"]
)
def test_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="accepted is host:port"):
        split_address(address)
