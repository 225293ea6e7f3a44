"""The table of the facts that each switch gives, by dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from railscope_collector.switches.openconfig_tables import GROUPS, is_requested
from railscope_collector.switches.switch_facts import (
    CISCO,
    COMWARE,
    FACTS,
    INTERFACES,
    LLDP,
    ONYX,
    STANDARD,
    Fact,
)

_EOS_MODEL = "arista-intf-augments"
_PREFIX = "railscope_switch_"


def _snmp(vendor: str, fact: Fact) -> str:
    if vendor in fact.snmp and vendor != STANDARD:
        return "yes"
    if (column := fact.snmp.get(STANDARD)) is None:
        return ""
    # A switch may lack a standard MIB other than those of interfaces and neighbours: Comware does not count PFC frames.
    return "yes" if column.table in {INTERFACES, LLDP} else f"if {column.table.name}"


def _openconfig(fact: Fact) -> str:
    if not fact.openconfig:
        return ""
    path = fact.openconfig if isinstance(fact.openconfig, str) else fact.openconfig[0]
    group = next(group for group in GROUPS if is_requested(path, group))
    return "EOS" if group.model == _EOS_MODEL else "yes"


_COLUMNS: Mapping[str, Callable[[Fact], str]] = {
    "SONiC": lambda fact: "yes" if fact.sonic else "",
    "OpenConfig": _openconfig,
    "SR Linux": lambda fact: "yes" if fact.srlinux else "",
    "Cumulus": lambda fact: "yes" if fact.cumulus else "",
    "Comware": partial(_snmp, COMWARE),
    "Cisco, SONiC by SNMP": partial(_snmp, CISCO),
    "Onyx": partial(_snmp, ONYX),
    "other, SNMP": partial(_snmp, STANDARD),
}
HEAD = (f"metric `{_PREFIX}`", *_COLUMNS)


def rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for each fact, or for both directions of it where the same switches give them."""
    found: dict[tuple[str, ...], list[str]] = {}
    for facts in FACTS.values():
        for fact in facts:
            name = fact.metric.name.removeprefix(_PREFIX)
            both = name.replace("transmit", "receive")
            given = tuple(column(fact) for column in _COLUMNS.values())
            found.setdefault((both, *given), []).append(name)
    for (both, *given), names in found.items():
        name = both.replace("receive", "{receive,transmit}") if len(names) > 1 else names[0]
        yield f"`{name}`", *given
