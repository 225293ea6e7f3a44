"""The switches file: addresses and credentials of the switches that the collector polls (TOML).

    [leaf-07]
    address = "192.0.2.7"                       # HOST or HOST:PORT, port 161 by default
    credential_file = "/etc/railscope/snmp.toml"
    tables = "sonic"

A credential file has `community` for SNMP version 2c, or `user` with passwords for version 3.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated, Literal

import msgspec

from collector.config import SwitchesSettings
from railscope import server_connections, untrusted_text
from railscope.settings import SettingsError, read_named_file

MAX_SWITCHES = 256
SNMP_PORT = 161
MAX_NAME_SHOWN = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MIN_PASSWORD = 8
"""RFC 3414, 11.2: shorter passwords are not accepted by SNMP."""


class SnmpCredential(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a credential file."""

    community: str = ""
    user: str = ""
    authentication: Literal["", "md5", "sha1", "sha224", "sha256", "sha384", "sha512"] = ""
    authentication_password: str = ""
    privacy: Literal["", "des", "aes128", "aes192", "aes256"] = ""
    privacy_password: str = ""

    def __repr__(self) -> str:
        """Return a text without secrets."""
        return f"SnmpCredential(user={self.user!r})"

    def find_problem(self) -> str:
        """Return what is wrong; empty if nothing is."""
        if bool(self.community) == bool(self.user):
            return "expected community (version 2c), or user (version 3)"
        for name in ("authentication", "privacy"):
            kind, password = getattr(self, name), getattr(self, f"{name}_password")
            if kind and len(password) < _MIN_PASSWORD:
                return f"invalid {name}_password: expected at least {_MIN_PASSWORD} characters"
            if password and not kind:
                return f"{name}_password without {name}: expected both or none"
        if self.community and (self.authentication or self.privacy):
            return "community with authentication or privacy: expected user"
        if self.privacy and not self.authentication:
            return "privacy without authentication: expected both"
        return ""


class SwitchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of the switches file."""

    address: str
    credential_file: str
    protocol: Literal["snmp"] = "snmp"
    tables: Literal["standard", "cisco", "sonic", "onyx"] = "standard"
    """Tables of the manufacturer that are read besides the standard ones."""
    period_seconds: Annotated[float, msgspec.Meta(ge=5, le=3600)] | None = None
    """Seconds between two polls; those of the section if absent."""


class ConfiguredSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """A switch with its checked address and credential."""

    name: str
    host: str
    port: int
    credential: SnmpCredential
    tables: str
    period_seconds: float
    timeout_seconds: float


def read_switches(settings: SwitchesSettings) -> tuple[ConfiguredSwitch, ...]:
    """Return the switches of the file that the settings name. Blocking; raises SettingsError."""
    if not settings.file:
        return ()
    text = read_named_file("switches.file", settings.file)
    try:
        tables = untrusted_text.parse_toml(text)
    except untrusted_text.TomlError as error:
        message = f"invalid TOML in switches.file {settings.file}: {error}"
        raise SettingsError(message) from error
    if len(tables) > MAX_SWITCHES:
        message = f"{len(tables)} switches in {settings.file}: expected at most {MAX_SWITCHES}"
        raise SettingsError(message)
    switches: dict[tuple[str, int], ConfiguredSwitch] = {}
    for name, table in tables.items():
        location = f"invalid switch in {settings.file}: [{name[:MAX_NAME_SHOWN]}]"
        if not _NAME.fullmatch(name):
            message = f"{location}: expected a name of letters, digits, '.', '_' and '-', at most 63 characters"
            raise SettingsError(message)
        switch = _configured(name, table, settings, location)
        other = switches.setdefault((switch.host, switch.port), switch)
        if other is not switch:
            message = f"{location} address: also that of [{other.name}]: expected one table for each switch"
            raise SettingsError(message)
    return tuple(switches.values())


def _configured(
    name: str, table: object, settings: SwitchesSettings, location: str
) -> ConfiguredSwitch:
    try:
        switch = untrusted_text.convert_json(table, SwitchSettings)
        host, port = _split_address(switch.address)
    except (untrusted_text.ShapeError, SettingsError) as error:
        message = f"{location} {error}"
        raise SettingsError(message) from error
    return ConfiguredSwitch(
        name=name,
        host=host,
        port=port,
        credential=_read_credential(switch.credential_file, location),
        tables=switch.tables,
        period_seconds=switch.period_seconds or settings.period_seconds,
        timeout_seconds=settings.timeout_seconds,
    )


def _split_address(address: str) -> tuple[str, int]:
    if ":" not in address or address.endswith("]"):
        address = f"{address}:{SNMP_PORT}"
    with suppress(SettingsError):
        host, port = server_connections.split_address(address)
        if host and port:
            return host, port
    message = f"address: {untrusted_text.quote_text(address)}: expected HOST or HOST:PORT"
    raise SettingsError(message)


def _read_credential(file: str, location: str) -> SnmpCredential:
    """Return the content of a credential file. Messages quote nothing of it."""
    text = read_named_file(f"{location} credential_file", file)
    problem = ""
    try:
        credential = msgspec.convert(untrusted_text.parse_toml(text), SnmpCredential)
    except (untrusted_text.TomlError, msgspec.ValidationError):
        names = ", ".join(SnmpCredential.__struct_fields__)
        problem = (
            f"expected TOML with the keys {names}, and valid values of authentication and privacy"
        )
    else:
        problem = credential.find_problem()
    if problem:
        message = f"{location} credential_file {file}: {problem}"
        raise SettingsError(message)
    return credential
