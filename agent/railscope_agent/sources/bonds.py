"""Links, active members, LACP state and link failures of bonds."""

from __future__ import annotations

from collections.abc import Iterator

from railscope.catalog import entities, network as c
from railscope.frame import Entity
from railscope.reading import Absent, Reading
from railscope_agent.host import Host
from railscope_agent.sampling.answer_readings import parsed_reading
from railscope_agent.sampling.fact_readers import nonempty_facts, read_text
from railscope_agent.sampling.source import SYSTEM
from railscope_agent.sources.network_links import NET
from railscope_agent.sources.scan_source import Found, ScanSource

_LACP = "802.3ad"


class BondSource(ScanSource):
    """Links, active members, LACP state and link failures of every bond.

    The values are from the bonding driver. Files: torvalds/linux drivers/net/bonding/bond_sysfs.c and
    bond_sysfs_slave.c; /proc/net/bonding has the same content as prose, but hides the active aggregator
    from readers without CAP_NET_ADMIN.
    """

    name = "bonds"
    lane = SYSTEM
    period_seconds = 5.0

    def readings(self, host: Host) -> Iterator[Found]:
        """Yield the state of each bond and of its members."""
        for bond in read_text(host, f"{NET}/bonding_masters").split():
            directory = f"{NET}/{bond}/bonding"
            mode = read_text(host, f"{directory}/mode").split(" ")[0]  # "802.3ad 4"
            about = Entity(entities.BOND, (bond,), nonempty_facts(mode=mode))
            yield c.BOND_UP, about, _state(host, f"{directory}/mii_status", b"up")
            yield (
                c.BOND_MEMBERS,
                about,
                parsed_reading(host.read, f"{directory}/slaves", lambda text: len(text.split())),
            )
            for member in read_text(host, f"{directory}/slaves").split():
                yield from _member(
                    host, about.child(entities.BOND_MEMBER, member), lacp=mode == _LACP
                )


def _member(host: Host, about: Entity, *, lacp: bool) -> Iterator[Found]:
    bond, member = about.key
    directory = f"{NET}/{member}/bonding_slave"
    yield c.BOND_MEMBER_UP, about, _state(host, f"{directory}/mii_status", b"up")
    yield c.BOND_MEMBER_ACTIVE, about, _state(host, f"{directory}/state", b"active")
    yield (
        c.BOND_MEMBER_FAILURES,
        about,
        parsed_reading(host.read, f"{directory}/link_failure_count"),
    )
    # Only LACP forms aggregates: in other modes the files contain 0 or N/A.
    if lacp:
        active, own = (
            parsed_reading(host.read, path)
            for path in (f"{NET}/{bond}/bonding/ad_aggregator", f"{directory}/ad_aggregator_id")
        )
        reason = next((each for each in (active, own) if isinstance(each, Absent)), None)
        # 0 means that there is none.
        yield c.BOND_MEMBER_AGGREGATED, about, reason or int(active == own != 0)


def _state(host: Host, path: str, state: bytes) -> Reading:
    return parsed_reading(host.read, path, lambda text: int(text.strip().lower() == state))
