"""The switches file: addresses and credentials of the switches that the collector reads (TOML).

    [leaf-07]
    address = "192.0.2.7"                       # HOST or HOST:PORT, port 161 by default
    credential_file = "/etc/railscope/snmp.toml"
    tables = "sonic"

A credential file has `community` for SNMP version 2c, or `user` with passwords for version 3.

    [leaf-08]
    address = "leaf-08.example"                 # port 50051 by default
    protocol = "gnmi"                           # SONiC, or the models of OpenConfig
    ca_file = "/etc/railscope/switch-ca.pem"
    credential_file = "/etc/railscope/gnmi.toml"

The one of gNMI has `user` and `password`; it is not required with a client certificate.

    [leaf-09]
    address = "192.0.2.9"                       # IP address that its pushes come from
    protocol = "otlp"
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from railscope import listen_address, untrusted_text
from railscope.settings import SettingsError, read_named_file
from railscope_collector.config import SwitchesSettings
from railscope_collector.files import watched_file
from railscope_collector.switches.link_ends import CabledLink

MAX_SWITCHES = 256
MAX_NAME_SHOWN = 100
PORTS = {"snmp": 161, "gnmi": 50051}
_TLS = ("ca_file", "certificate_file", "key_file", "server_name")
_PROTOCOLS: Mapping[str, tuple[str, ...]] = {
    "tables": ("snmp",),
    "credential_file": ("snmp", "gnmi"),
    **dict.fromkeys((*_TLS, "plaintext", "dialect"), ("gnmi",)),
}
"""Protocols that have a setting."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
CredentialT = TypeVar("CredentialT", bound=msgspec.Struct)
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


class GnmiUser(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of a credential file of gNMI."""

    user: str
    password: str

    def __repr__(self) -> str:
        """Return a text without secrets."""
        return f"GnmiUser(user={self.user!r})"


class SwitchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of the switches file."""

    address: str
    credential_file: str = ""
    """Community or user of SNMP, which requires it; user of gNMI; OTLP has none."""
    protocol: Literal["snmp", "gnmi", "otlp"] = "snmp"
    """snmp, gnmi: the collector polls the switch. otlp: the switch pushes to the OTLP receiver."""
    dialect: Literal["auto", "sonic", "openconfig"] = "auto"
    """Models that are read by gNMI. auto: found in Capabilities of the switch."""
    tables: Literal["auto", "standard", "cisco", "comware", "onyx", "sonic"] = "auto"
    """Tables of the manufacturer that are read by SNMP besides the standard ones. auto: found by sysObjectID of the switch."""
    period_seconds: Annotated[float, msgspec.Meta(ge=5, le=3600)] | None = None
    """Seconds between two polls, or pushes at most; those of the section if absent."""
    ca_file: str = ""
    """CA certificates (PEM) that the certificate of a switch by gNMI is verified with. Empty: those of the system."""
    certificate_file: str = ""
    """Certificate of the collector for gNMI (PEM)."""
    key_file: str = ""
    """Private key of that certificate. Empty: in its file."""
    server_name: str = ""
    """Name in the certificate of the switch, if it is not the one in the address."""
    plaintext: bool = False
    """Connect by gNMI without TLS. Accepted with a user for an address of the loopback interface only."""

    def find_problem(self) -> str:
        """Return what is wrong; empty if nothing is."""
        return next(self._problems(), "")

    def _problems(self) -> Iterator[str]:
        defaults = {each.name: each.default for each in msgspec.structs.fields(self)}
        used = [name for name in _PROTOCOLS if getattr(self, name) != defaults[name]]
        for name in used:
            if self.protocol not in _PROTOCOLS[name]:
                protocols = " or ".join(map(repr, _PROTOCOLS[name]))
                yield f"{name}: expected with protocol = {protocols} only"
        if self.protocol == "snmp" and not self.credential_file:
            yield "expected credential_file"
        if self.key_file and not self.certificate_file:
            yield "key_file without certificate_file: expected both"
        if self.plaintext and (of_tls := [name for name in used if name in _TLS]):
            yield f"{of_tls[0]} with plaintext: expected one of them"


class ConfiguredSwitch(SwitchSettings, frozen=True, kw_only=True):
    """A table of the switches file with its name, its checked address and its credential."""

    name: str
    host: str
    port: int
    credential: SnmpCredential = SnmpCredential()
    user: GnmiUser | None = None
    """User of gNMI."""
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
        try:
            switch = _configured(name, untrusted_text.convert_json(table, SwitchSettings), settings)
            other = switches.setdefault((switch.host, switch.port), switch)
            if other is not switch:
                message = (
                    f"address: also that of [{other.name}]: expected one table for each switch"
                )
                raise SettingsError(message)  # noqa: TRY301 - the place is added below
        except (untrusted_text.ShapeError, SettingsError) as error:
            place = f"invalid switch in {settings.file}: [{name[:MAX_NAME_SHOWN]}]"
            message = f"{place} {error}"
            raise SettingsError(message) from error
    return tuple(switches.values())


def _configured(name: str, table: SwitchSettings, settings: SwitchesSettings) -> ConfiguredSwitch:
    """Return a switch. Raises SettingsError, without its place in the file."""
    if not _NAME.fullmatch(name):
        message = "invalid name: expected a name of letters, digits, '.', '_' and '-', at most 63 characters"
        raise SettingsError(message)
    host, port = _split_address(table.address, PORTS.get(table.protocol, 0))
    if problem := table.find_problem():
        raise SettingsError(problem)
    credential, user = SnmpCredential(), None
    if table.protocol == "snmp":
        credential = _read_credential(table.credential_file, SnmpCredential)
        if problem := credential.find_problem():
            message = f"credential_file {table.credential_file}: {problem}"
            raise SettingsError(message)
    elif table.credential_file:
        user = _read_credential(table.credential_file, GnmiUser)
    if table.ca_file or table.certificate_file:
        _check_certificates(table)
    if user and table.plaintext and not listen_address.is_loopback(host):
        message = (
            "plaintext with a user: expected TLS, as the password would be readable on the network"
        )
        raise SettingsError(message)
    given: dict[str, Any] = msgspec.structs.asdict(table)
    given["period_seconds"] = table.period_seconds or settings.period_seconds
    return ConfiguredSwitch(
        **given,
        name=name,
        host=host,
        port=port,
        credential=credential,
        user=user,
        timeout_seconds=settings.timeout_seconds,
    )


def _check_certificates(table: SwitchSettings) -> None:
    """Raise SettingsError unless the certificates of a switch can be used."""
    authorities = read_named_file("ca_file", table.ca_file) if table.ca_file else None
    try:
        context = ssl.create_default_context(cadata=authorities)
        if table.certificate_file:
            # An encrypted key is an error, and no question on the terminal
            context.load_cert_chain(table.certificate_file, table.key_file or None, password=str)
    except (OSError, ValueError) as error:
        message = f"ca_file, certificate_file or key_file: expected PEM files that belong together: {error}"
        raise SettingsError(message) from error


def canonical_address(address: str) -> str:
    """Return an IP address in its usual form, without a zone; an IPv4 address also if IPv6 contains it.

    Raises ValueError.
    """
    parsed = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def _split_address(address: str, default_port: int) -> tuple[str, int]:
    """Return host and port; without a default port, the address is one that pushes come from."""
    expected = "HOST or HOST:PORT"
    if not default_port:
        expected = "the IP address that the pushes of the switch come from"
        with suppress(ValueError):
            return canonical_address(address), 0
    elif ":" not in address or address.endswith("]"):
        address = f"{address}:{default_port}"
    with suppress(SettingsError):
        host, port = listen_address.split_address(address)
        if host and port and default_port:
            return host, port
    message = f"address: {untrusted_text.quote_text(address)}: expected {expected}"
    raise SettingsError(message)


def _read_credential(file: str, shape: type[CredentialT]) -> CredentialT:
    """Return the content of a credential file. Messages quote nothing of it."""
    text = read_named_file("credential_file", file)
    try:
        return msgspec.convert(untrusted_text.parse_toml(text), shape)
    except (untrusted_text.TomlError, msgspec.ValidationError):
        names = ", ".join(shape.__struct_fields__)
    values = "valid values of authentication and privacy" if shape is SnmpCredential else "texts"
    message = f"credential_file {file}: expected TOML with the keys {names}, and {values}"
    raise SettingsError(message)


# Cabling -----------------------------------------------------------------------------------------


def read_cabling(settings: SwitchesSettings) -> tuple[CabledLink, ...]:
    """Return the rows of the cabling file. Blocking; raises SettingsError."""
    if not settings.cabling_file:
        return ()
    text = read_named_file("switches.cabling_file", settings.cabling_file)
    try:
        return tuple(_cabled_links(text))
    except watched_file.FileError as error:
        message = f"invalid switches.cabling_file {settings.cabling_file}: {error}"
        raise SettingsError(message) from error


def _cabled_links(text: str) -> Iterator[CabledLink]:
    lines: dict[tuple[str, str], int] = {}
    for number, row in watched_file.read_rows(text, CabledLink._fields):
        link = CabledLink(*map(str.strip, row))
        if not all(link):
            message = f"line {number}: expected a value in each column"
            raise watched_file.FileError(message)
        for end in ((link.switch, link.port), (link.node, link.interface)):
            if lines.setdefault(end, number) != number:
                message = f"line {number}: {'/'.join(end)} is also in line {lines[end]}: expected one cable for each end"
                raise watched_file.FileError(message)
        yield link
