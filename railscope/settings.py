"""Settings: one TOML file per program, then the environment, then flags.

A settings type is a frozen msgspec Struct with a docstring below each field; sample files and the
reference are generated from it. Unknown keys are errors that name the most similar valid one.
"""

from __future__ import annotations

import ast
import inspect
import math
import os
import textwrap
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from railscope import RailscopeError
from railscope.untrusted_text import TomlError, parse_toml

Settings = TypeVar("Settings", bound=msgspec.Struct)

CONFIGURATION_VARIABLE = "RAILSCOPE_CONFIGURATION"
CONFIGURATION = "/etc/railscope"
"""Directory of the settings files of installed programs, unless the variable names another."""
MAX_QUOTED = 200
MAX_NUMBER = 1 << 50
"""Bound of settings without a bound of their own: a PiB of bytes; a larger value is a mistake."""
_TYPES: dict[Any, str] = {
    int: "an integer",
    float: "a finite number",
    bool: "true or false",
    str: "a string",
}
_BOUNDS = {
    "ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than",
    "min_length": "length at least", "max_length": "length at most", "pattern": "that matches",
}  # fmt: skip


class SettingsError(RailscopeError, ValueError):
    """A setting that is unknown, of the wrong type or out of bounds; the message names it."""


def default_file(program: str) -> Path | None:
    """Return the settings file that all commands of a program read by default; None if missing.

    `--config` overrides it. A file that exists but cannot be read is returned: reading it raises the
    reason.
    """
    directory = Path(os.environ.get(CONFIGURATION_VARIABLE) or CONFIGURATION)
    file = directory / f"{program}.toml"
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        return file
    return file


def state_directory(settings: Any) -> Path:
    """Return the state directory of settings: as configured, else as set by systemd, else the default."""
    directory = os.environ.get("STATE_DIRECTORY", "")
    is_default = settings.state_directory == type(settings)().state_directory
    return Path(directory if directory and is_default else settings.state_directory)


def load(  # noqa: PLR0913 - each is a source of values
    kind: type[Settings],
    *,
    file: Path | None,
    environment: Mapping[str, str] = os.environ,
    prefix: str,
    flags: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> Settings:
    """Load settings from defaults, a file, the environment and flags; later ones take precedence.

    `prefix` starts the names of environment variables; sections are separated by two underscores:
    RAILSCOPE_AGENT_COLLECTOR__URL. `flags` maps dotted keys to values; None stands for an unset flag.
    `defaults`, by dotted key, replace those of the type.
    Raises SettingsError that states the file or variable, the key and the expected value.
    """
    merged = _nest(defaults or {}, ".")
    if file is not None:
        _merge(kind, merged, _read(file), str(file))
    for name, value in _from_environment(kind, environment, prefix).items():
        _merge(kind, merged, value, f"environment variable {name}")
    flag_values = {key: value for key, value in (flags or {}).items() if value is not None}
    _merge(kind, merged, _nest(flag_values, "."), "the command line")
    # Not strict: numbers in environment variables are texts.
    return msgspec.convert(merged, kind, strict=False)


def _read(file: Path) -> dict[str, Any]:
    try:
        return parse_toml(file.read_text(encoding="utf-8"))
    except OSError as error:
        message = f"cannot read {file}: {error.strerror}"
        raise SettingsError(message) from error
    except (TomlError, UnicodeDecodeError) as error:
        message = f"invalid TOML in {file}: {error}"
        raise SettingsError(message) from error


def read_named_file(setting: str, file: str, encoding: str = "utf-8") -> str:
    """Return the stripped text of the file that a setting names. Raises SettingsError."""
    try:
        return Path(file).read_text(encoding).strip()
    except (OSError, UnicodeDecodeError) as error:
        message = f"cannot read {setting} {file}: {error}"
        raise SettingsError(message) from error


def check_http_url(setting: str, url: str) -> None:
    """Raise SettingsError if the URL that a setting names is not one of HTTP, or contains a credential."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        # Without the URL, which contains the password.
        message = f"invalid {setting}: expected a URL without user and password"
        raise SettingsError(message)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        message = (
            f"invalid {setting} {shown_url(url)!r}: expected http://HOST/PATH or https://HOST/PATH"
        )
        raise SettingsError(message)


def shown_url(url: str) -> str:
    """Return a URL for logs and messages: without its query, which may contain a credential."""
    return urlsplit(url)._replace(query="", fragment="").geturl()


def _from_environment(
    kind: type[msgspec.Struct], environment: Mapping[str, str], prefix: str
) -> dict[str, dict[str, Any]]:
    """Return the setting in each environment variable with the prefix."""
    key_by_variable = {key.upper().replace(".", "__"): key for key, *_ in _leaves(kind)}
    values = {}
    for name, value in environment.items():
        if name.startswith(prefix):
            suffix = name.removeprefix(prefix)
            if suffix not in key_by_variable:
                message = f"unknown environment variable {name}{_nearest(suffix, key_by_variable, prefix)}"
                raise SettingsError(message)
            values[name] = _nest({key_by_variable[suffix]: value}, ".")
    return values


def _nest(flat: Mapping[str, Any], separator: str) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, last = key.split(separator)
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return nested


def _merge(
    kind: type[msgspec.Struct], into: dict[str, Any], new: dict[str, Any], origin: str
) -> None:
    hints = typing.get_type_hints(kind, include_extras=True)
    for key, value in new.items():
        if key not in hints:
            message = f"unknown key {key!r} in {origin}{_nearest(key, hints)}"
            raise SettingsError(message)
        section = _section(hints[key])
        if section is None:
            into[key] = _check_value(
                hints[key], key, _table(hints[key], key, value, origin), origin
            )
        elif isinstance(value, dict):
            _merge(section, into.setdefault(key, {}), value, f"{origin} [{key}]")
        else:
            message = (
                f"invalid {key} in {origin}: expected a section; fix: write [{key}] and its"
                " settings below"
            )
            raise SettingsError(message)


def _check_value(hint: Any, key: str, value: Any, origin: str) -> Any:
    """Return the value unchanged. Raises SettingsError if its type or bounds are invalid."""
    if typing.get_origin(_plain(hint)) is dict and isinstance(value, dict):
        of_entry = typing.get_args(_plain(hint))[1]
        for name, entry in value.items():
            _check_value(of_entry, f"{key}.{name[:MAX_QUOTED]}", entry, origin)
    shown = repr(value) if len(repr(value)) <= MAX_QUOTED else repr(value)[:MAX_QUOTED] + "..."
    message = f"invalid {key} in {origin}: {shown}: expected {expectation(hint)}"
    try:
        converted = msgspec.convert(value, hint, strict=False)
    except msgspec.ValidationError as error:
        raise SettingsError(message) from error
    # msgspec accepts infinity without an upper bound, and NaN without any bound.
    if isinstance(converted, float) and not math.isfinite(converted):
        raise SettingsError(message)
    if isinstance(converted, int | float) and abs(converted) > MAX_NUMBER:
        message = f"{message}, at most {MAX_NUMBER}"
        raise SettingsError(message)
    return value


def expectation(hint: Any) -> str:
    """Describe type and bounds of a setting, such as "an integer, at least 1"."""
    plain, *notes = typing.get_args(hint) if typing.get_origin(hint) is Annotated else (hint,)
    if typing.get_origin(plain) is dict:
        value = expectation(typing.get_args(plain)[1])
        return f"a table such as {{ name = value }}, each value {value}"
    if typing.get_origin(plain) is list:
        length = "".join(f", at most {note.max_length} values" for note in notes)
        return f'a list such as ["a", "b"]{length}'
    if typing.get_origin(plain) is Literal:
        return f"one of {', '.join(typing.get_args(plain))}"
    parts = [_TYPES.get(plain, str(plain))]
    for note in notes:
        parts += [
            f"{text} {bound}"
            for name, text in _BOUNDS.items()
            if (bound := getattr(note, name, None)) is not None
        ]
    return ", ".join(parts)


def _table(hint: Any, key: str, value: Any, origin: str) -> Any:
    """Parse a table or list given as text, as in the environment: `{ a = 1 }`. Other values are unchanged."""
    example = {dict: "a table such as { a = 1 }", list: 'a list such as ["a", "b"]'}.get(
        typing.get_origin(_plain(hint))
    )
    if example is None or not isinstance(value, str):
        return value
    try:
        return parse_toml(f"{key} = {value}")[key]
    except TomlError as error:
        message = f"invalid {key} in {origin}: expected {example}: {error}"
        raise SettingsError(message) from error


def _plain(hint: Any) -> Any:
    """Return a type without its bounds."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _section(hint: Any) -> type[msgspec.Struct] | None:
    return hint if isinstance(hint, type) and issubclass(hint, msgspec.Struct) else None


def _nearest(name: str, names: Mapping[str, Any], prefix: str = "") -> str:
    import difflib  # noqa: PLC0415 - only for a mistake

    if near := difflib.get_close_matches(name, list(names), n=1):
        return f"; did you mean {prefix + near[0]!r}?"
    return f": expected one of {', '.join(prefix + each for each in sorted(names))}"


# Documentation ---------------------------------------------------------------------------------


class SettingField(msgspec.Struct, frozen=True):
    """One setting as shown in documentation."""

    description: str
    default: Any
    type: str


def fields(kind: type[msgspec.Struct]) -> list[tuple[str, SettingField]]:
    """Return every setting by its dotted key. Raises TypeError for one without a docstring."""
    settings: list[tuple[str, SettingField]] = []
    for key, section, info, hint in _leaves(kind):
        text = _docstrings(section).get(info.name)
        if text is None:
            message = f"undocumented setting: {key}: expected a docstring below it"
            raise TypeError(message)
        factory = info.default_factory
        default = info.default if factory is msgspec.NODEFAULT else factory()
        is_choice = typing.get_origin(hint) is Literal
        type_name = "str" if is_choice else getattr(_plain(hint), "__name__", str(hint))
        settings.append((key, SettingField(text, default, type_name)))
    return settings


def _leaves(
    kind: type[msgspec.Struct], prefix: str = ""
) -> Iterator[tuple[str, type[msgspec.Struct], msgspec.structs.FieldInfo, Any]]:
    """Yield every setting: its dotted key, its section, its field and its type."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for info in msgspec.structs.fields(kind):
        if section := _section(hints[info.name]):
            yield from _leaves(section, f"{prefix}{info.name}.")
        else:
            yield prefix + info.name, kind, info, hints[info.name]


@cache
def _docstrings(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring below each field, on one line."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    (definition,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def sample(kind: type[msgspec.Struct], title: str) -> str:
    """Return a commented sample file with every setting at its default."""
    lines = [f"# {title}", "# Every line shows the default; remove the # to change it."]
    section = ""
    ordered = sorted(fields(kind), key=lambda entry: "." in entry[0])
    for key, entry in ordered:
        head, _, name = key.rpartition(".")
        if head != section:
            section = head
            lines += ["", f"[{section}]"]
        lines += ["", f"# {entry.description}", f"# {name} = {_toml(entry.default)}"]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, dict):
        inner = ", ".join(f"{_toml(key)} = {_toml(entry)}" for key, entry in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value)
