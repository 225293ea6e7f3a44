"""Entities: the objects that metrics describe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from railscope.catalog.declare import EntityKind
from railscope.text import printable


@dataclass(frozen=True, slots=True)
class Entity:
    """Object of a kind: a stable identity, and facts that describe it, as printable text.

    `key` has one value for each label of the kind and is its identity. Two entities compare equal only
    with equal facts, so that a firmware update creates a new schema.
    """

    kind: EntityKind
    key: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Reject a key of the wrong length and facts that the kind does not declare."""
        if len(self.key) != len(self.kind.labels):
            message = f"{self.kind.name} needs {self.kind.labels}, got {self.key}"
            raise ValueError(message)
        unknown = set(self.facts) - set(self.kind.facts)
        if unknown:
            message = f"{self.kind.name} declares no facts named {sorted(unknown)}"
            raise ValueError(message)
        if not "".join(self.key).isprintable():
            object.__setattr__(self, "key", tuple(map(printable, self.key)))
        if not "".join(self.facts.values()).isprintable():
            facts = {name: printable(text) for name, text in self.facts.items()}
            object.__setattr__(self, "facts", facts)

    def part(self, kind: EntityKind, *key: str) -> Entity:
        """Return a part of this entity, such as the clock of a GPU or the priority of a NIC."""
        return Entity(kind, self.key + key)

    @property
    def whole_key(self) -> tuple[str, ...]:
        """The part of the key that identifies the outermost entity that contains this one."""
        return self.key[: len(self.kind.whole.labels)]
