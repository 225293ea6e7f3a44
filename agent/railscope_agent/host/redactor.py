"""Consistent redaction of names, addresses and serial numbers of a recorded node.

The rule is an allow-list: parts of a recording that identify no person and no site are retained,
everything else is replaced. A token is retained if it is a number, a term of a known format, or a
device name that the kernel builds from such terms and numbers (`ens1f0np0`, `mlx5_0`). Answers that
consist of driver counters, such as the counter files of an RDMA port, are retained whole. Every
other word is replaced by a generated one, the same at every occurrence, so that a redacted capture
replays like the original.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files

from railscope.capture import SECTIONS, CaptureMoment, Json

_BDF = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
PCI_ADDRESS = (
    rf"(?<![0-9a-z:.]){_BDF}(?![0-9a-z:])|(?<=PCI:)[0-9a-f]{{4,8}}:[0-9a-f]{{2}}:[0-9a-f]{{2}}"
)
_DRIVER_ANSWER_KEYS = {
    "files": re.compile(
        rf"/sys/(?:bus/pci/devices/{_BDF}|devices/pci[^\s]*/{_BDF}|class/(?:net|infiniband)/[^/]+/device)"
        r"/(?:class|vendor|device|subsystem_\w+|revision|(?:current|max)_link_\w+|numa_node"
        r"|local_cpu\w+|aer_\w+|sriov_\w+|enable)"
        r"|/sys/class/infiniband/[^/]+/(?:fw_ver|hca_type|node_type|board_id|hw_rev|tc/.*"
        r"|ports/\d+/(?:(?:hw_)?counters/.*|state|phys_state|rate|link_layer|gid_attrs/types/\d+))"
        r"|/sys/class/net/[^/]+/(?:statistics/\w+|carrier\w*|mtu|speed|duplex|operstate|type|flags"
        r"|dev_port|phys_port_name|ecn/.*|qos/\w+)"
        r"|/proc/(?:stat|meminfo|vmstat|loadavg|uptime|pressure/\w+)"
        r"|/proc(?:/self)?/net/(?:snmp6?|netstat|softnet_stat|sockstat6?|stat/\w+)",
        re.IGNORECASE,
    ),
    "names": re.compile(
        r"/sys/class/infiniband/[^/]+/ports/\d+/(?:hw_)?counters|/sys/bus/pci/devices"
    ),
    "links": re.compile(rf"/sys/bus/pci/devices/{_BDF}(?:/driver)?"),
    "calls": re.compile(
        r"nvml\.(?!nvmlDeviceGetSerial|nvmlDeviceGetPlatformInfo|nvmlVgpuInstanceGetVmID).*"
        r"|ethtool\.(?:statistics|driver).*"
        r"|netlink\.(?:dcb|fec|link_modes|link_state|pause|rings|module|rdma_statistics"
        r"|standard_statistics).*"
    ),
}
"""Keys of answers that contain only what drivers and the kernel define, by section."""
_COUNTER_FILE = re.compile(r"(?<=counters/)[\w.]+$")
"""Name of a counter file at the end of a path; drivers define these names."""
_RUNS = re.compile(r"[^\W\d_]+")
_FIXED = re.compile(
    rf"\d+|0x[0-9a-f]+|x[0-9a-f]{{7}}|{_BDF}|[0-9a-f]{{4,8}}(?::[0-9a-f]{{2}}){{2}}|pci[0-9a-f]{{4}}",
    re.IGNORECASE,
)
MAX_LETTERS_TOKEN = 5
"""Maximum length of a token of single letters and digits, such as `p0` or `3g`: it identifies nothing."""


def is_harmless(token: str) -> bool:
    """True if a token is a number, a PCI address, a term of a format, or composed of those."""
    if _FIXED.fullmatch(token):
        return True
    runs = _RUNS.findall(token.lower())
    if all(len(run) == 1 for run in runs):
        return len(token) <= MAX_LETTERS_TOKEN
    return all(len(run) == 1 or run in _harmless_terms() for run in runs)


@cache
def _harmless_terms() -> frozenset[str]:
    text = files("railscope_agent.host").joinpath("harmless_words.txt").read_text(encoding="ascii")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return frozenset(term for line in lines for term in line.split())


_MIN_SECRET_LENGTH = 4
"""A serial number of "0" identifies nothing, and would match everywhere."""
_UUID = (
    r"(?:GPU-|MIG-|pod)?[0-9a-f]{8}(?P<dash>[-_])[0-9a-f]{4}(?P=dash)[0-9a-f]{4}(?P=dash)"
    r"[0-9a-f]{4}(?P=dash)[0-9a-f]{12}"
)
_IDENTIFIER = (
    rf"{_UUID}"
    r"|\b(?:[0-9a-f]{4}:){3,7}[0-9a-f]{4}\b"  # GUIDs and GIDs
    r"|\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b"  # MAC addresses
    r"|\benx[0-9a-f]{12}"  # interfaces named after a MAC address
    r"|(?<![0-9a-z])(?=\d*[a-f])(?:[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{16})(?![0-9a-z])"  # containers, pods, clients
)
_SLUID = r"(?-i:(?<![0-9A-Za-z])s[0-9A-HJKMNP-TV-Z]{13}(?![0-9A-Za-z]))"
_ADDRESS = (
    r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])"
    r"|(?<![0-9a-z:.])(?!\d+::?/)(?=[0-9a-f:]*[0-9a-f])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{0,4}(?![0-9a-z:.])"
)
_CLIENT = (
    r"(?<![0-9a-z])client\d+(?![0-9a-z])"  # of a Ceph cluster, with a number that is unique in it
)
_NAMED = rf"(?P<sluid>{_SLUID})|(?P<client>{_CLIENT})|(?P<identifier>{_IDENTIFIER})"
_IDENTIFIERS = re.compile(_NAMED, re.IGNORECASE)
_IDENTIFIERS_AND_WORDS = re.compile(
    rf"{_NAMED}|(?P<token>{PCI_ADDRESS})"
    rf"|(?P<address>{_ADDRESS})|(?P<word>[^\W_]+)",
    re.IGNORECASE,
)
_ROUTES = {"route": (0, (1, 2)), "ipv6_route": (9, (0, 2, 4))}
"""Routing tables in /proc/net: the field of the interface, and those of addresses, in hex digits."""
_VALUE = re.compile(r"[+-]?[0-9.]+(?:e[+-]?[0-9]{1,3})?\n", re.IGNORECASE)
_HEX = re.compile("(?!0+$)[0-9a-f]+", re.IGNORECASE)
_KIND = re.compile("GPU-|MIG-|enx|pod|", re.IGNORECASE)
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_PRODUCT_MARKS = ("SW_MNG",)
"""Markers that are retained from the product data of a NIC."""
_COMMON_NAMES = {"default", "kube-system", "kube-public", "root"}
"""Names that are the same everywhere, and would match everywhere."""


class Redactor:
    """Replacement of everything that may identify a node, a person or a customer.

    A name is replaced as a whole word, case-insensitively: the node name `node1` does not match
    `node12`.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._names = [_name_pattern(name) for name in names if name]
        self._secrets: set[str] = set()

    def add_secret(self, secret: str) -> None:
        """Replace this from now on, even inside a word: for example, a serial number."""
        if len(secret) >= _MIN_SECRET_LENGTH and secret not in self._secrets:
            self._secrets.add(secret)
            self._names.append(re.compile(re.escape(secret)))

    def add_name(self, name: str) -> None:
        """Replace this from now on as a whole word: for example, the name of a user."""
        if name and name not in self._secrets and name not in _COMMON_NAMES:
            self._secrets.add(name)
            self._names.append(_name_pattern(name))

    def redact_text(self, text: str) -> str:
        """The text with every registered name and every identifier replaced by one of the same form."""
        return _IDENTIFIERS.sub(_replace_match, self._without_names(text))

    def scrub(self, text: str) -> str:
        """Like `redact_text`, with every word that is not known to be harmless replaced as well."""
        return _IDENTIFIERS_AND_WORDS.sub(_replace_match, self._without_names(text))

    def _without_names(self, text: str) -> str:
        for pattern in self._names:
            text = pattern.sub(lambda match: _generated_name(match[0]), text)
        return text

    def redact_moment(self, moment: CaptureMoment) -> CaptureMoment:
        """A moment without secrets in its answers and its keys."""
        sections = {
            section: {
                self._key(section, key): self._answer(section, key, value)
                for key, value in getattr(moment, section).items()
            }
            for section in SECTIONS
        }
        return CaptureMoment(
            moment.offset_ns, **sections, log=[self.scrub(line) for line in moment.log]
        )

    def _key(self, section: str, key: str) -> str:
        """A redacted path or call. Function names and counter file names (set by drivers) are retained."""
        if section == "calls":
            function, bracket, arguments = key.partition("(")
            return function + bracket + self.scrub(arguments)
        counter = _COUNTER_FILE.search(key)
        if counter is None:
            return self.scrub(key)
        return self.scrub(key[: counter.start()]) + counter[0]

    def _answer(self, section: str, key: str, value: Json) -> Json:
        directory, _, name = key.rpartition("/")
        if name == "vpd" and isinstance(value, str):
            # Serial numbers in a binary format (PCI Local Bus Specification, VPD).
            return " ".join(mark for mark in _PRODUCT_MARKS if mark in value)
        if directory.startswith("/proc/") and name in _ROUTES and isinstance(value, str):
            return "".join(
                self._route(line, *_ROUTES[name]) for line in value.splitlines(keepends=True)
            )
        if key.startswith("textfile.read(") and isinstance(value, list):
            *facts, text = value
            return [*facts, "".join(map(self._textfile_line, text.splitlines(keepends=True)))]
        return self.redact_json(
            value, whole=_DRIVER_ANSWER_KEYS[section].fullmatch(key) is not None
        )

    def _textfile_line(self, line: str) -> str:
        """A line of a textfile; its value is retained: digits of a number identify nothing."""
        head, space, value = line.rpartition(" ")
        return self.scrub(head) + space + (value if _VALUE.fullmatch(value) else self.scrub(value))

    def _route(self, line: str, interface: int, addresses: Sequence[int]) -> str:
        """A line of the kernel's routing table; a default route stays a default route."""
        parts = re.split(r"(\s+)", line)
        for position in range(0, len(parts), 2):
            if position // 2 == interface:
                parts[position] = self.scrub(parts[position])
            elif position // 2 in addresses and _HEX.fullmatch(parts[position]):
                parts[position] = _same_form(parts[position])
        return "".join(parts)

    def redact_json(self, value: Json, *, whole: bool = False) -> Json:
        """A JSON value with every string redacted, including keys; `whole`: identifiers and names only."""
        if isinstance(value, str):
            return self.redact_text(value) if whole else self.scrub(value)
        if isinstance(value, list):
            return [self.redact_json(item, whole=whole) for item in value]
        if isinstance(value, dict):
            return {
                self.redact_json(key, whole=whole): self.redact_json(item, whole=whole)
                for key, item in value.items()
            }
        return value


def _name_pattern(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![0-9a-z]){re.escape(name)}(?![0-9a-z])", re.IGNORECASE)


def _digest(text: str) -> str:
    return hashlib.sha256(text.lower().encode(errors="surrogateescape")).hexdigest()


def _generated_name(text: str) -> str:
    # A hash, so that one name has one replacement in all captures of a site.
    return "x" + _digest(text)[:7]


def _replace_match(match: re.Match[str]) -> str:
    """Replacement of a match: the match itself if it is harmless."""
    value = match[0]
    if match.lastgroup == "sluid":
        return _sluid(value)
    if match.lastgroup == "client":
        return re.sub(r"\d+", _other_number, value)
    if match["identifier"]:
        return _same_form(value)
    if match["address"]:
        return _address(value)
    return value if is_harmless(value) else _generated_name(value)


def _same_form(identifier: str) -> str:
    kind = _KIND.match(identifier)
    prefix = kind[0] if kind else ""
    suffix = identifier[len(prefix) :]
    digest = _digest(suffix.replace(":", "").replace("_", "-"))  # systemd writes _ for - in names
    fresh = iter(digest.upper() if suffix.isupper() else digest)
    return prefix + "".join(c if c in "-:_" else next(fresh) for c in suffix)


def _other_number(match: re.Match[str]) -> str:
    """A number with as many digits, the first of them not zero."""
    count = len(match[0])
    return str(10 ** (count - 1) + int(_digest(match[0]), 16) % (9 * 10 ** (count - 1)))


def _sluid(text: str) -> str:
    """A SLUID of the same form; its first character is the prefix."""
    # Not of the text in lower case: SLUIDs are written in one form only.
    digest = hashlib.sha256(text.encode()).digest()
    return "s" + "".join(_CROCKFORD[byte % 32] for byte in digest[: len(text) - 1])


def _address(text: str) -> str:
    """An IP address of the same family, from ranges that are never routed; `::` is retained."""
    digest = hashlib.sha256(text.lower().encode()).digest()
    if "." in text:
        return f"10.{digest[0]}.{digest[1]}.{digest[2]}"
    return f"fd00::{digest[:2].hex()}:{digest[2:4].hex()}"
