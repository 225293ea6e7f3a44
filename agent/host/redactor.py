"""Hides names and serial numbers of a recorded machine, consistently."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from railscope.capture import SECTIONS, Json, Moment

_SHORTEST_WORD = 4
"""A serial number of "0" names nothing, and would be found everywhere."""
_IDENTIFIERS = re.compile(
    r"(?P<uuid>(?:GPU-|MIG-)?"
    r"[0-9a-f]{8}(?P<dash>[-_])[0-9a-f]{4}(?P=dash)[0-9a-f]{4}(?P=dash)[0-9a-f]{4}(?P=dash)[0-9a-f]{12})"
    r"|(?P<guid>\b(?:[0-9a-f]{4}:){3,7}[0-9a-f]{4}\b)"
    r"|(?P<mac>\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b)"
    r"|(?P<interface>\benx[0-9a-f]{12})",
    re.IGNORECASE,
)
_KIND = re.compile("GPU-|MIG-|enx|", re.IGNORECASE)
_EVERYBODYS = {"default", "kube-system", "kube-public", "root"}
"""Names that are the same everywhere, and would be found everywhere."""


class Redactor:
    """Replaces names and serial numbers, each by the same made-up one wherever it stands.

    A name is replaced as a whole word, in any case: a server called `node1` is not in `node12`.
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self._words = [_whole_word(name) for name in names if name]
        self._learned: set[str] = set()

    def learn(self, word: str) -> None:
        """From now on, replace this too, even inside of a word: a serial number, say."""
        if len(word) >= _SHORTEST_WORD and word not in self._learned:
            self._learned.add(word)
            self._words.append(re.compile(re.escape(word)))

    def name(self, word: str) -> None:
        """From now on, replace this where it is a word of its own: the name of a user, say."""
        if word and word not in self._learned and word not in _EVERYBODYS:
            self._learned.add(word)
            self._words.append(_whole_word(word))

    def text(self, text: str) -> str:
        """The text with every identifier replaced by one of the same form."""
        for word in self._words:
            text = word.sub(lambda match: "x" + _digest(match[0])[:7], text)
        return _IDENTIFIERS.sub(lambda match: _same_form(match[0]), text)

    def moment(self, moment: Moment) -> Moment:
        """A moment without the secrets in its answers and in what was asked."""
        sections = {section: self.json(getattr(moment, section)) for section in SECTIONS}
        return Moment(moment.offset_ns, **sections, log=self.json(moment.log))

    def json(self, value: Json) -> Json:
        """The same for every string in a JSON value, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(item) for item in value]
        if isinstance(value, dict):
            return {self.text(key): self.json(item) for key, item in value.items()}
        return value


def _whole_word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![0-9a-z]){re.escape(name)}(?![0-9a-z])", re.IGNORECASE)


def _digest(word: str) -> str:
    return hashlib.sha256(word.lower().encode()).hexdigest()


def _same_form(identifier: str) -> str:
    kind = _KIND.match(identifier)
    kept = kind[0] if kind else ""
    own = identifier[len(kept) :]
    fresh = iter(_digest(own.replace(":", "").replace("_", "-")))  # systemd writes _ for - in names
    return kept + "".join(c if c in "-:_" else next(fresh) for c in own)
