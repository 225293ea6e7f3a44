"""Links, active members, LACP state and link failures of bonds."""

from __future__ import annotations

from collections.abc import Callable

from railscope.catalog import declare, entities, network as network_catalog
from railscope.frame import Entity
from railscope.reading import Absent, Reading, parse_integer, reason_of
from railscope_agent.host import Host
from railscope_agent.sampling import fact_readers, probe_result, row_builder, source
from railscope_agent.sources.network_links import NET

_LACP = "802.3ad"
ReadColumn = Callable[[Host], Reading]


class BondSource(source.SourceWithoutResources):
    """Links, active members, LACP state and link failures of every bond.

    The values are from the bonding driver. Files: torvalds/linux drivers/net/bonding/bond_sysfs.c and
    bond_sysfs_slave.c; /proc/net/bonding has the same content as prose, but hides the active aggregator
    from readers without CAP_NET_ADMIN.
    """

    name = "bonds"
    family = "host"

    def __init__(self) -> None:
        self._readers: list[ReadColumn] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the bonds and their members."""
        columns = probe_result.ColumnBuilder()
        self._readers = []

        def add(metric: declare.Metric, about: Entity, read: ReadColumn) -> None:
            columns.add(metric, about)
            self._readers.append(read)

        findings = []
        for bond in fact_readers.read_text(host, f"{NET}/bonding_masters").split():
            directory = f"{NET}/{bond}/bonding"
            mode = fact_readers.read_text(host, f"{directory}/mode").split(" ")[0]  # "802.3ad 4"
            entity = Entity(entities.BOND, (bond,), fact_readers.nonempty_facts(mode=mode))
            members = fact_readers.read_text(host, f"{directory}/slaves").split()
            add(network_catalog.BOND_UP, entity, _state_reader(f"{directory}/mii_status", b"up"))
            add(network_catalog.BOND_MEMBERS, entity, _count_reader(f"{directory}/slaves"))
            for member in members:
                _add_member(add, entity, member, lacp=mode == _LACP)
            detail = f"{mode or 'unknown mode'}, {', '.join(members) or 'no members'}"
            findings.append(probe_result.ProbeFinding.supported(f"bond {bond}", detail))
        if not findings:
            findings.append(
                probe_result.ProbeFinding.absent("bonds", "the node has no bonded interface")
            )
        return columns.result(*findings)

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read every file."""
        for column, read in enumerate(self._readers):
            try:
                into.put(column, read(host))
            except OSError as error:
                into.put(column, reason_of(error))


def _add_member(
    add: Callable[[declare.Metric, Entity, ReadColumn], None],
    bond: Entity,
    member: str,
    *,
    lacp: bool,
) -> None:
    about = bond.child(entities.BOND_MEMBER, member)
    directory = f"{NET}/{member}/bonding_slave"
    failures = f"{directory}/link_failure_count"
    add(network_catalog.BOND_MEMBER_UP, about, _state_reader(f"{directory}/mii_status", b"up"))
    add(network_catalog.BOND_MEMBER_ACTIVE, about, _state_reader(f"{directory}/state", b"active"))
    add(
        network_catalog.BOND_MEMBER_FAILURES, about, lambda host: parse_integer(host.read(failures))
    )
    # Only LACP forms aggregates: in other modes the files contain 0 or N/A.
    if lacp:
        active = f"{NET}/{bond.key[0]}/bonding/ad_aggregator"
        same = _same_aggregator(active, f"{directory}/ad_aggregator_id")
        add(network_catalog.BOND_MEMBER_AGGREGATED, about, same)


def _state_reader(path: str, state: bytes) -> ReadColumn:
    return lambda host: int(host.read(path).strip().lower() == state)


def _count_reader(path: str) -> ReadColumn:
    return lambda host: len(host.read(path).split())


def _same_aggregator(active_path: str, member_path: str) -> ReadColumn:
    """Column that is 1 if two files contain the same aggregator; 0 and N/A mean that there is none."""

    def read(host: Host) -> Reading:
        active, member = (
            parse_integer(host.read(active_path)),
            parse_integer(host.read(member_path)),
        )
        return active if isinstance(active, Absent) else int(active == member != 0)

    return read
