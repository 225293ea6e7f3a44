"""Settings: later sources take precedence, and an error names the source of the value."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest

from railscope.settings import (
    SettingsError,
    fields,
    load,
    sample,
)
from railscope_agent.config import AgentSettings


class Inner(msgspec.Struct, frozen=True, kw_only=True):
    """A section."""

    period: Annotated[float, msgspec.Meta(ge=0.1)] = 1.0
    """Seconds."""
    name: str = ""
    """A name."""


class Outer(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a test."""

    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 80
    """Port."""
    verbose: bool = False
    """Print "more"."""
    directory: str = 'C:\\new "directory"'
    """Directory."""
    inner: Inner = Inner()


def loaded(
    tmp_path: Path,
    text: str = "",
    environment: dict[str, str] | None = None,
    flags: dict[str, Any] | None = None,
) -> Outer:
    file = tmp_path / "settings.toml"
    file.write_text(text)
    return load(Outer, file=file, environment=environment or {}, prefix="T_", flags=flags)


def test_defaults_without_a_file() -> None:
    assert load(Outer, file=None, environment={}, prefix="T_") == Outer()


def test_the_later_place_wins(tmp_path: Path) -> None:
    text = "port = 1\n[inner]\nperiod = 2\nname = 'file'\n"
    assert loaded(tmp_path, text) == Outer(port=1, inner=Inner(period=2.0, name="file"))
    environment = {"T_PORT": "3", "T_INNER__PERIOD": "4.5", "HOME": "/root"}
    assert loaded(tmp_path, text, environment) == Outer(
        port=3, inner=Inner(period=4.5, name="file")
    )
    flags = {"port": 5, "inner.period": None, "inner.name": "flag"}
    assert loaded(tmp_path, text, environment, flags) == Outer(
        port=5, inner=Inner(period=4.5, name="flag")
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "settings.toml; did you mean 'port'?"),
        (
            "[inner]\nperoid = 1",
            "settings.toml [inner]; did you mean 'period'?",
        ),
        (
            "xyz = 1",
            "settings.toml: expected one of directory, inner, port, verbose",
        ),
        ("port = 0", "settings.toml: 0: expected an integer, at least 1, at most 65535"),
        ("port = 'http'", "settings.toml: 'http': expected an integer, at least 1"),
        ("port = 1.5", "settings.toml: 1.5: expected an integer"),
        ("verbose = 'loud'", "settings.toml: 'loud': expected true or false"),
        ("directory = 3", "settings.toml: 3: expected a string"),
        (
            "[inner]\nperiod = 0.01",
            "settings.toml [inner]: 0.01: expected a finite number, at least 0.1",
        ),
        ("[inner]\nperiod = nan", "settings.toml [inner]: nan: expected a finite number"),
        ("[inner]\nperiod = inf", "settings.toml [inner]: inf: expected a finite number"),
        ("inner = 3", "inner"),
        ("port = ", "invalid TOML in "),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        loaded(tmp_path, text)
    assert message in str(raised.value)
    assert "settings.toml" in str(raised.value)
    assert re.match(r"(?:unknown key '\w+'|invalid \w+) in ", str(raised.value))


def test_a_mistake_in_the_environment_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match="unknown environment variable T_PROT; did you mean 'T_PORT'"
    ):
        loaded(tmp_path, environment={"T_PROT": "1"})
    with pytest.raises(SettingsError, match="invalid port in environment variable T_PORT: 'http'"):
        loaded(tmp_path, environment={"T_PORT": "http"})


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"cannot read {tmp_path}/absent.toml: No such file"):
        load(Outer, file=tmp_path / "absent.toml", environment={}, prefix="T_")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\0")
    with pytest.raises(SettingsError, match="invalid TOML"):
        load(Outer, file=binary, environment={}, prefix="T_")


@pytest.mark.parametrize("kind", [Outer, AgentSettings])
def test_the_sample_file_shows_the_defaults(tmp_path: Path, kind: type[msgspec.Struct]) -> None:
    text = sample(kind, "A title.")
    file = tmp_path / "sample.toml"
    file.write_text(text)
    assert load(kind, file=file, environment={}, prefix="T_") == kind()
    uncommented = "\n".join(
        line.removeprefix("# ") if " = " in line else line for line in text.splitlines()
    )
    file.write_text(uncommented)
    tomllib.loads(uncommented)
    assert load(kind, file=file, environment={}, prefix="T_") == kind()


class Named(msgspec.Struct, frozen=True, kw_only=True):
    numbers: dict[str, int] = {}
    """Numbers by name."""


def test_a_table_comes_from_the_environment_as_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("numbers = { one = 1 }\n")
    assert load(Named, file=file, environment={}, prefix="T_").numbers == {"one": 1}
    for text, expected in (("{ two = 2, 'a.b' = 3 }", {"two": 2, "a.b": 3}), ("{}", {})):
        environment = {"T_NUMBERS": text}
        found = load(Named, file=file, environment=environment, prefix="T_")
        assert found.numbers == expected
    assert dict(fields(Named))["numbers"].default == {}


def test_every_setting_of_the_agent_is_described() -> None:
    assert [
        key for key, field in fields(AgentSettings) if not field.description.endswith(".")
    ] == []


def test_the_error_of_an_invalid_table_has_an_example() -> None:
    for text, problem in (
        ("{ one }", r"invalid numbers in .* T_NUMBERS: expected a table such as \{ a = 1 \}"),
        ("{ one = 'x' }", r"^invalid numbers\.one in .*: 'x': expected an integer$"),
    ):
        with pytest.raises(SettingsError, match=problem):
            load(Named, file=None, environment={"T_NUMBERS": text}, prefix="T_")
