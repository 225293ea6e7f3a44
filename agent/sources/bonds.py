"""Bonds and their members, as reported by the bonding driver.

Files: torvalds/linux drivers/net/bonding/bond_sysfs.c and bond_sysfs_slave.c; /proc/net/bonding has
the same content as prose, but hides the active aggregator from readers without CAP_NET_ADMIN.
"""

from __future__ import annotations

from collections.abc import Callable

from agent.host import Host
from agent.sampling.facts import known, text
from agent.sampling.source import Columns, Finding, HoldsNothing, Inventory, Table, Verdict
from railscope.catalog import network as c
from railscope.catalog.declare import Metric
from railscope.catalog.entities import BOND, BOND_MEMBER
from railscope.entity import Entity
from railscope.reading import Absent, Reading, parse_integer, reason_of

ROOT = "/sys/class/net"
_LACP = "802.3ad"
Ask = Callable[[Host], Reading]


class Bonds(HoldsNothing):
    """Links, active members, LACP state and link failures of every bond."""

    name = "bonds"
    family = "host"

    def __init__(self, period_seconds: float = 5.0) -> None:
        self.period_seconds = period_seconds
        self._asks: list[Ask] = []

    def probe(self, host: Host) -> Inventory:
        """Find the bonds and their members."""
        columns = Columns()
        self._asks = []

        def add(metric: Metric, about: Entity, ask: Ask) -> None:
            columns.add(metric, about)
            self._asks.append(ask)

        bonds = text(host, f"{ROOT}/bonding_masters").split()
        findings = []
        for bond in bonds:
            directory = f"{ROOT}/{bond}/bonding"
            mode = text(host, f"{directory}/mode").split(" ")[0]  # "802.3ad 4"
            entity = Entity(BOND, (bond,), known(mode=mode))
            members = text(host, f"{directory}/slaves").split()
            add(c.BOND_UP, entity, _is(f"{directory}/mii_status", b"up"))
            add(c.BOND_MEMBERS, entity, _count(f"{directory}/slaves"))
            for member in members:
                _add_member(add, entity, member, lacp=mode == _LACP)
            detail = f"{mode or 'unknown mode'}, {', '.join(members) or 'no members'}"
            findings.append(Finding(f"bond {bond}", Verdict.SUPPORTED, detail))
        if not bonds:
            findings.append(Finding("bonds", Verdict.ABSENT, "no interface is a bond"))
        return Inventory(tuple(columns.columns), (), tuple(findings))

    def read(self, host: Host, into: Table) -> None:
        """Read every file."""
        for column, ask in enumerate(self._asks):
            try:
                into.put(column, ask(host))
            except OSError as error:
                into.put(column, reason_of(error))


def _add_member(
    add: Callable[[Metric, Entity, Ask], None], bond: Entity, member: str, *, lacp: bool
) -> None:
    about = bond.part(BOND_MEMBER, member)
    directory = f"{ROOT}/{member}/bonding_slave"
    add(c.BOND_MEMBER_UP, about, _is(f"{directory}/mii_status", b"up"))
    add(c.BOND_MEMBER_ACTIVE, about, _is(f"{directory}/state", b"active"))
    add(c.BOND_MEMBER_FAILURES, about, _number(f"{directory}/link_failure_count"))
    if lacp:
        ours = f"{ROOT}/{bond.key[0]}/bonding/ad_aggregator"
        add(c.BOND_MEMBER_AGGREGATED, about, _same(ours, f"{directory}/ad_aggregator_id"))


def _is(path: str, word: bytes) -> Ask:
    return lambda host: int(host.read(path).strip().lower() == word)


def _number(path: str) -> Ask:
    return lambda host: parse_integer(host.read(path))


def _count(path: str) -> Ask:
    return lambda host: len(host.read(path).split())


def _same(one: str, other: str) -> Ask:
    """Column that is 1 if two files contain the same aggregator; 0 and N/A are no aggregator."""

    def ask(host: Host) -> Reading:
        active, own = parse_integer(host.read(one)), parse_integer(host.read(other))
        if isinstance(active, Absent):
            return active
        return int(active == own != 0)

    return ask
