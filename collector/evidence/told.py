"""Claims as agents tell them in events (railscope.catalog.tenancy), made into facts.

A node speaks for the GPUs that are in it: a claim that its agent tells holds only while the GPU is
there. Where one claim is told more than once with different words, the least of them counts, so
that it does not matter which came first.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from collector.metering.evidence import Level
from collector.metering.units import FOREVER_NS, WHOLE, Slots, checked
from railscope.catalog.tenancy import (
    CLAIM_END_EVENT,
    CLAIM_START_EVENT,
    UNCLAIMED_END_EVENT,
    UNCLAIMED_START_EVENT,
)
from railscope.wire import WireEvent

STARTS = frozenset({CLAIM_START_EVENT.name, UNCLAIMED_START_EVENT.name})
ENDS = frozenset({CLAIM_END_EVENT.name, UNCLAIMED_END_EVENT.name})
_LEVELS = {
    "process": Level.PROCESS,
    "node_plugin": Level.NODE_PLUGIN,
    "scheduler": Level.SCHEDULER,
    "administrator": Level.ADMINISTRATOR,
}
_SLOTS = re.compile(r"(\d{1,3})-(\d{1,3})")
_INSTANT = re.compile(r"\d{1,19}")
_KEY_WORDS = 2
MOST_CHARACTERS = 400
"""Of a name: a database cannot index much longer ones."""


_READ = frozenset({
    "level", "source", "owner", "tenant", "workload", "start_ns", "end_ns", "uncertainty_ns",
    "compute", "memory", "exclusive", "system", "profile",
})  # fmt: skip


class ToldError(ValueError):
    """An event that cannot be a claim; the message says why."""


class Told(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """A claim by the word of a node."""

    start_ns: int
    gpu: str
    node: str
    id: str
    level: Level
    source: str = ""
    owner: str = ""
    tenant: str = ""
    workload: str = ""
    compute: tuple[int, int] = (WHOLE.low, WHOLE.high)
    memory: tuple[int, int] = (WHOLE.low, WHOLE.high)
    exclusive: bool = True
    system: bool = False
    uncertainty_ns: int = 0
    profile: str = ""
    boot: str = ""
    """The boot of the node in which it was told, and when it was first told in it."""
    told_ns: int = 0


class Ended(msgspec.Struct, frozen=True, array_like=True, order=True, gc=False):
    """The end of a claim by the word of a node. It may be known before the claim is."""

    instant_ns: int
    gpu: str
    node: str
    id: str


class Teller(NamedTuple):
    """A node in one of its boots, and when that began on the collector's clock."""

    node: str
    boot: str
    since_boot_ns: int


def told(teller: Teller, event: WireEvent) -> Told | Ended:
    """The fact in a claim event. Raises ToldError."""
    node = teller.node
    if len(event.entity.key) != _KEY_WORDS or not all(event.entity.key):
        message = f"a claim is about a GPU and has an id, not {event.entity.key}"
        raise ToldError(message)
    gpu, claim = event.entity.key
    facts = {name: word for name, word in event.facts.items() if name in _READ}
    words = (gpu, claim, *facts.values())
    if any("\0" in word or len(word) > MOST_CHARACTERS for word in words):
        message = f"claim {claim[:MOST_CHARACTERS]!r} has words that no ledger can keep"
        raise ToldError(message)
    if event.name in ENDS:
        return Ended(_instant(facts, "end_ns", event.wall_ns), gpu, node, claim)
    if facts.get("level") not in _LEVELS:
        message = f"claim {claim!r} is by the word of {facts.get('level')!r}, which is no level"
        raise ToldError(message)
    unclaimed = event.name == UNCLAIMED_START_EVENT.name
    compute = _slots(facts, "compute")
    return Told(
        start_ns=_instant(facts, "start_ns", event.wall_ns),
        gpu=gpu,
        node=node,
        id=claim,
        level=Level.PROCESS if unclaimed else _LEVELS[facts["level"]],
        source=facts.get("source", ""),
        owner=facts.get("owner", ""),
        tenant=facts.get("tenant", ""),
        workload=facts.get("workload", ""),
        compute=compute,
        memory=_slots(facts, "memory") if facts.get("memory") else compute,
        exclusive=facts.get("exclusive") != "false",
        system=facts.get("system") == "true",
        uncertainty_ns=_instant(facts, "uncertainty_ns", 0),
        profile=facts.get("profile", ""),
        boot=teller.boot,
        told_ns=teller.since_boot_ns + event.boot_ns,
    )


def _instant(facts: dict[str, str], name: str, otherwise: int) -> int:
    text = facts.get(name, "")
    if not text:
        return otherwise
    if not _INSTANT.fullmatch(text) or int(text) >= FOREVER_NS:
        message = f"{name} is {text!r}, which is no time in nanoseconds"
        raise ToldError(message)
    return int(text)


def _slots(facts: dict[str, str], name: str) -> tuple[int, int]:
    text = facts.get(name, "")
    if not text:
        return WHOLE.low, WHOLE.high
    match = _SLOTS.fullmatch(text)
    try:
        slots = checked(Slots(int(match[1]), int(match[2]))) if match else None
    except ValueError:
        slots = None
    if slots is None or slots.low >= slots.high:
        message = f"{name} is {text!r}, which are no slots like 0-840"
        raise ToldError(message)
    return slots.low, slots.high
