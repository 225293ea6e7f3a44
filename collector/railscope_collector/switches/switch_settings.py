"""The switches file: addresses and credentials of the switches that the collector reads (TOML).

    [leaf-07]
    address = "192.0.2.7"                       # HOST or HOST:PORT, port 161 by default
    credential_file = "/etc/railscope/snmp.toml"
    tables = "sonic"

A credential file has `community` for SNMP version 2c, or `user` with passwords for version 3.

    [leaf-08]
    address = "leaf-08.example"                 # port 50051 by default
    protocol = "gnmi"                           # SONiC
    ca_file = "/etc/railscope/switch-ca.pem"
    credential_file = "/etc/railscope/gnmi.toml"

The one of gNMI has `user` and `password`; it is not required with a client certificate.

    [leaf-10]
    address = "leaf-10.example:6030"
    protocol = "gnmi"
    dialect = "openconfig"                      # auto by default: found in the models of the switch

    [leaf-09]
    address = "192.0.2.9"                       # IP address that its pushes come from
    protocol = "otlp"                           # or "dialout": gRPC dial-out of H3C
"""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Literal, TypeVar

import msgspec

from railscope import listen_address, untrusted_text
from railscope.settings import SettingsError, read_named_file
from railscope_collector.config import SwitchesSettings
from railscope_collector.files import watched_file
from railscope_collector.switches.link_ends import CabledLink

MAX_SWITCHES = 256
SNMP_PORT, GNMI_PORT = 161, 50051
MAX_NAME_SHOWN = 100
PUSH_PROTOCOLS = "otlp", "dialout"
DIALECTS = {
    "snmp": ("auto", "snmp", "comware"),
    "gnmi": ("auto", "sonic", "openconfig"),
    "otlp": ("auto",),
    "dialout": ("auto", "comware"),
}
"""Dialects of each protocol."""
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


class GnmiAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Certificates and user of a connection by gNMI."""

    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    server_name: str = ""
    plaintext: bool = False
    user: GnmiUser | None = None


class SwitchSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of the switches file."""

    address: str
    credential_file: str = ""
    """Community or user of SNMP, which requires it; user of gNMI; OTLP has none."""
    protocol: Literal["snmp", "gnmi", "otlp", "dialout"] = "snmp"
    """snmp, gnmi: the collector polls the switch. otlp, dialout: the switch pushes to the receiver of this protocol."""
    dialect: Literal["auto", "sonic", "openconfig", "comware", "snmp"] = "auto"
    """Names of the readings: sonic or openconfig by gNMI, comware or snmp (standard MIBs) by SNMP. auto: found at the switch."""
    tables: Literal["auto", "standard", "cisco", "sonic", "onyx"] = "auto"
    """Tables of the manufacturer that are read besides the standard ones. auto: found by sysObjectID of the switch."""
    period_seconds: Annotated[float, msgspec.Meta(ge=5, le=3600)] | None = None
    """Seconds between two polls, or pushes at most; those of the section if absent."""
    ca_file: str = ""
    """CA certificates (PEM) that the certificate of a switch by gNMI is verified with. Empty: those of the system."""
    certificate_file: str = ""
    """Certificate of the collector for gNMI (PEM)."""
    key_file: str = ""
    """Private key of that certificate. Empty: in its file."""
    server_name: str = ""
    """Name in the certificate of the switch, if it is not the one in the address. With dialout, it identifies the switch."""
    plaintext: bool = False
    """Connect by gNMI without TLS. Accepted with a user for an address of the loopback interface only."""

    def find_problem(self) -> str:
        """Return what is wrong; empty if nothing is."""
        of_gnmi = ("ca_file", "certificate_file", "key_file", "server_name", "plaintext")
        used = [name for name in of_gnmi if getattr(self, name)]
        dialects = DIALECTS[self.protocol]
        if self.dialect not in dialects:
            names = ", ".join(dialects)
            return f"dialect = {self.dialect!r}: expected {names} with protocol = {self.protocol!r}"
        if self.protocol == "snmp":
            return self._find_snmp_problem(used)
        if self.tables != "auto":
            return "tables: expected with protocol = 'snmp' only"
        if self.protocol in PUSH_PROTOCOLS:
            if self.protocol == "dialout":
                used = [name for name in used if name != "server_name"]
            unused = used or (["credential_file"] if self.credential_file else [])
            return f"{unused[0]}: expected none with protocol = {self.protocol!r}" if unused else ""
        return self._find_gnmi_problem(used)

    def _find_snmp_problem(self, used: list[str]) -> str:
        if used:
            return f"{used[0]}: expected with protocol = 'gnmi' only"
        if self.dialect == "comware" and self.tables != "auto":
            return "tables: expected none with dialect = 'comware'"
        return "" if self.credential_file else "expected credential_file"

    def _find_gnmi_problem(self, used: list[str]) -> str:
        if self.key_file and not self.certificate_file:
            return "key_file without certificate_file: expected both"
        if self.plaintext and len(used) > 1:
            return f"{used[0]} with plaintext: expected one of them"
        return ""


class ConfiguredSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """A switch with its checked address and credential."""

    name: str
    host: str
    port: int
    credential: SnmpCredential = SnmpCredential()
    gnmi: GnmiAccess | None = None
    """Access by gNMI; None if the switch is read by SNMP, or pushes."""
    push_protocol: str = ""
    """Protocol by which the switch pushes; empty if it is polled."""
    certificate_name: str = ""
    """Name in the client certificate of a switch that pushes, which identifies it; empty: its address does."""
    dialect: str = "auto"
    tables: str = "auto"
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


def _configured(
    name: str, table: object, settings: SwitchesSettings, location: str
) -> ConfiguredSwitch:
    try:
        switch = untrusted_text.convert_json(table, SwitchSettings)
        is_gnmi, pushes = switch.protocol == "gnmi", switch.protocol in PUSH_PROTOCOLS
        default_port = GNMI_PORT if is_gnmi else SNMP_PORT
        host, port = (
            (_push_address(switch.address), 0)
            if pushes
            else _split_address(switch.address, default_port)
        )
    except (untrusted_text.ShapeError, SettingsError) as error:
        message = f"{location} {error}"
        raise SettingsError(message) from error
    if problem := switch.find_problem():
        message = f"{location} {problem}"
        raise SettingsError(message)
    access, credential = None, SnmpCredential()
    if is_gnmi:
        access = _gnmi_access(switch, host, location)
    elif not pushes:
        credential = _read_credential(switch.credential_file, location, SnmpCredential)
        if problem := credential.find_problem():
            message = f"{location} credential_file {switch.credential_file}: {problem}"
            raise SettingsError(message)
    return ConfiguredSwitch(
        name=name,
        host=host,
        port=port,
        credential=credential,
        gnmi=access,
        push_protocol=switch.protocol if pushes else "",
        certificate_name=switch.server_name if pushes else "",
        dialect=switch.dialect,
        tables=switch.tables,
        period_seconds=switch.period_seconds or settings.period_seconds,
        timeout_seconds=settings.timeout_seconds,
    )


def _gnmi_access(switch: SwitchSettings, host: str, location: str) -> GnmiAccess:
    authorities = read_named_file(f"{location} ca_file", switch.ca_file) if switch.ca_file else None
    try:
        context = ssl.create_default_context(cadata=authorities)
        if switch.certificate_file:
            # An encrypted key is an error, and no question on the terminal
            context.load_cert_chain(switch.certificate_file, switch.key_file or None, password=str)
    except (OSError, ValueError) as error:
        message = f"{location} ca_file, certificate_file or key_file: expected PEM files that belong together: {error}"
        raise SettingsError(message) from error
    user = None
    if switch.credential_file:
        user = _read_credential(switch.credential_file, location, GnmiUser)
    if user and switch.plaintext and not is_loopback(host):
        message = f"{location} plaintext with a user: expected TLS, as the password would be readable on the network"
        raise SettingsError(message)
    return GnmiAccess(
        ca_file=switch.ca_file,
        certificate_file=switch.certificate_file,
        key_file=switch.key_file,
        server_name=switch.server_name,
        plaintext=switch.plaintext,
        user=user,
    )


def is_loopback(host: str) -> bool:
    """True if a host is this machine."""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def canonical_address(address: str) -> str:
    """Return an IP address in its usual form, without a zone; an IPv4 address also if IPv6 contains it.

    Raises ValueError.
    """
    parsed = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def _push_address(address: str) -> str:
    with suppress(ValueError):
        return canonical_address(address)
    shown = untrusted_text.quote_text(address)
    message = f"address: {shown}: expected the IP address that the pushes of the switch come from"
    raise SettingsError(message)


def _split_address(address: str, default_port: int) -> tuple[str, int]:
    if ":" not in address or address.endswith("]"):
        address = f"{address}:{default_port}"
    with suppress(SettingsError):
        host, port = listen_address.split_address(address)
        if host and port:
            return host, port
    message = f"address: {untrusted_text.quote_text(address)}: expected HOST or HOST:PORT"
    raise SettingsError(message)


def _read_credential(file: str, location: str, shape: type[CredentialT]) -> CredentialT:
    """Return the content of a credential file. Messages quote nothing of it."""
    text = read_named_file(f"{location} credential_file", file)
    try:
        return msgspec.convert(untrusted_text.parse_toml(text), shape)
    except (untrusted_text.TomlError, msgspec.ValidationError):
        names = ", ".join(shape.__struct_fields__)
    values = "valid values of authentication and privacy" if shape is SnmpCredential else "texts"
    message = (
        f"{location} credential_file {file}: expected TOML with the keys {names}, and {values}"
    )
    raise SettingsError(message)
