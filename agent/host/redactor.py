"""Consistent redaction of names, addresses and serial numbers of a recorded node.

Tokens that are harmless (`agent.host.harmless`) are retained; every other word is replaced by a
generated one, the same at every occurrence, so that a redacted capture replays like the original.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from agent.host import harmless
from railscope.capture import SECTIONS, Json, Moment

_MIN_WORD_LENGTH = 4
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
_IDENTIFIERS = re.compile(rf"(?P<sluid>{_SLUID})|(?P<identifier>{_IDENTIFIER})", re.IGNORECASE)
_EVERYTHING = re.compile(
    rf"(?P<sluid>{_SLUID})|(?P<identifier>{_IDENTIFIER})|(?P<token>{harmless.PCI_ADDRESS})"
    rf"|(?P<address>{_ADDRESS})|(?P<word>[^\W_]+)",
    re.IGNORECASE,
)
_ROUTES = {"route": (0, (1, 2)), "ipv6_route": (9, (0, 2, 4))}
"""For each file of /proc/net: the field of the interface, and those of addresses, in hex digits."""
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
        self._words = [_whole_word(name) for name in names if name]
        self._learned: set[str] = set()

    def learn(self, word: str) -> None:
        """Replace this from now on, even inside a word: for example, a serial number."""
        if len(word) >= _MIN_WORD_LENGTH and word not in self._learned:
            self._learned.add(word)
            self._words.append(re.compile(re.escape(word)))

    def name(self, word: str) -> None:
        """Replace this from now on as a whole word: for example, the name of a user."""
        if word and word not in self._learned and word not in _COMMON_NAMES:
            self._learned.add(word)
            self._words.append(_whole_word(word))

    def text(self, text: str) -> str:
        """The text with every registered name and every identifier replaced by one of the same form."""
        return _IDENTIFIERS.sub(_replaced, self._without_names(text))

    def scrubbed(self, text: str) -> str:
        """Like `text`, with every word that is not known to be harmless replaced as well."""
        return _EVERYTHING.sub(_replaced, self._without_names(text))

    def _without_names(self, text: str) -> str:
        for word in self._words:
            text = word.sub(lambda match: _made_up(match[0]), text)
        return text

    def moment(self, moment: Moment) -> Moment:
        """A moment without secrets in its answers and its keys."""
        sections = {
            section: {
                self._key(section, key): self._answer(section, key, value)
                for key, value in getattr(moment, section).items()
            }
            for section in SECTIONS
        }
        return Moment(
            moment.offset_ns, **sections, log=[self.scrubbed(line) for line in moment.log]
        )

    def _key(self, section: str, key: str) -> str:
        """A redacted path or call. Function names and counter file names (set by drivers) are retained."""
        if section == "calls":
            function, bracket, arguments = key.partition("(")
            return function + bracket + self.scrubbed(arguments)
        counter = harmless.counter_file(key)
        if counter is None:
            return self.scrubbed(key)
        return self.scrubbed(key[: counter.start()]) + counter[0]

    def _answer(self, section: str, key: str, value: Json) -> Json:
        directory, _, name = key.rpartition("/")
        if name == "vpd" and isinstance(value, str):
            # Serial numbers in a binary format (PCI Local Bus Specification, VPD).
            return " ".join(mark for mark in _PRODUCT_MARKS if mark in value)
        if directory.startswith("/proc/") and name in _ROUTES and isinstance(value, str):
            return "".join(
                self._route(line, *_ROUTES[name]) for line in value.splitlines(keepends=True)
            )
        return self.json(value, whole=harmless.is_whole(section, key))

    def _route(self, line: str, interface: int, addresses: Sequence[int]) -> str:
        """A line of the kernel's routing table; a default route stays a default route."""
        parts = re.split(r"(\s+)", line)
        for at in range(0, len(parts), 2):
            if at // 2 == interface:
                parts[at] = self.scrubbed(parts[at])
            elif at // 2 in addresses and _HEX.fullmatch(parts[at]):
                parts[at] = _same_form(parts[at])
        return "".join(parts)

    def json(self, value: Json, *, whole: bool = False) -> Json:
        """A JSON value with every string redacted, including keys; `whole`: identifiers and names only."""
        if isinstance(value, str):
            return self.text(value) if whole else self.scrubbed(value)
        if isinstance(value, list):
            return [self.json(item, whole=whole) for item in value]
        if isinstance(value, dict):
            return {
                self.json(key, whole=whole): self.json(item, whole=whole)
                for key, item in value.items()
            }
        return value


def _whole_word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![0-9a-z]){re.escape(name)}(?![0-9a-z])", re.IGNORECASE)


def _digest(word: str) -> str:
    return hashlib.sha256(word.lower().encode(errors="surrogateescape")).hexdigest()


def _made_up(word: str) -> str:
    return "x" + _digest(word)[:7]


def _replaced(match: re.Match[str]) -> str:
    """Replacement of a match: the match itself if it is harmless."""
    found = match[0]
    if match.lastgroup == "sluid":
        return _sluid(found)
    if match["identifier"]:
        return _same_form(found)
    if match["address"]:
        return _address(found)
    return found if harmless.is_harmless(found) else _made_up(found)


def _same_form(identifier: str) -> str:
    kind = _KIND.match(identifier)
    kept = kind[0] if kind else ""
    own = identifier[len(kept) :]
    digest = _digest(own.replace(":", "").replace("_", "-"))  # systemd writes _ for - in names
    fresh = iter(digest.upper() if own.isupper() else digest)
    return kept + "".join(c if c in "-:_" else next(fresh) for c in own)


def _sluid(word: str) -> str:
    """A SLUID of the same form; its first character is the prefix."""
    digest = hashlib.sha256(word.encode()).digest()
    return "s" + "".join(_CROCKFORD[byte % 32] for byte in digest[: len(word) - 1])


def _address(text: str) -> str:
    """An IP address of the same family, from ranges that are never routed; `::` is retained."""
    digest = hashlib.sha256(text.lower().encode()).digest()
    if "." in text:
        return f"10.{digest[0]}.{digest[1]}.{digest[2]}"
    return f"fd00::{digest[:2].hex()}:{digest[2:4].hex()}"
