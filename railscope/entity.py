"""Entities: what a metric is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from railscope.catalog.declare import EntityKind
from railscope.text import printable


@dataclass(frozen=True, slots=True)
class Entity:
    """One thing of a kind: a stable identity, and facts that describe it, as printable text.

    `key` gives one value for each label of the kind and is its identity. Two entities compare equal
    only with equal facts, so that a new firmware makes a new schema.
    """

    kind: EntityKind
    key: tuple[str, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Refuse a key of the wrong length and facts the kind does not declare."""
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
        """A part of this entity: the clock of a GPU, the priority of a NIC."""
        return Entity(kind, self.key + key)

    @property
    def whole_key(self) -> tuple[str, ...]:
        """The part of the key that names the outermost entity this one belongs to."""
        return self.key[: len(self.kind.whole.labels)]
