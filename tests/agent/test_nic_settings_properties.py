"""Any change of a NIC setting is reported once, despite failures and probes."""

from __future__ import annotations

import errno
from typing import Any

from hypothesis import given, strategies as st
from support.machine import DENIED, FakeHost
from support.nics import FEC, LINK_MODES, NET, add_netlink, add_nic, changes
from support.reading import ORIGIN

from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nic_settings import NicSettingsSource

INTERFACES = ("eth0", "eth1")
TROUBLE = (DENIED, OSError(errno.EIO, "I/O error"), OSError(errno.EOPNOTSUPP, "no"), KeyError("x"))
Setting = tuple[str, str]


def failing(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Strategy of a set value or an error of its read."""
    return st.one_of(value, value, st.sampled_from(TROUBLE))


NIC = st.one_of(
    st.none(),
    st.fixed_dictionaries({
        "mtu": failing(st.sampled_from([1500, 4200])),
        "pfc": failing(st.sets(st.integers(0, 2))),
        "ring": failing(st.sampled_from([512, 1024])),
        "carrier": st.booleans(),
    }),
)  # fmt: skip
STEP = st.tuples(st.fixed_dictionaries(dict.fromkeys(INTERFACES, NIC)), st.integers(0, 2))


def put(host: FakeHost, machine: dict[str, dict[str, Any] | None]) -> None:
    """Put the settings of `machine` into the host."""
    for interface, nic in machine.items():
        directory = f"{NET}/{interface}/"
        for stored in (host.files, host.links, host.calls):
            for key in [k for k in stored if k.startswith(directory) or f"({interface})" in k]:
                del stored[key]
        if nic is None:
            continue
        add_nic(host, interface, address=f"0000:0{interface[-1]}:00.0")
        mtu, pfc, ring, up = nic["mtu"], nic["pfc"], nic["ring"], nic["carrier"]
        host.files[f"{NET}/{interface}/carrier"] = str(int(up))
        host.files[f"{NET}/{interface}/mtu"] = mtu if isinstance(mtu, Exception) else f"{mtu}\n"
        add_netlink(
            host,
            interface,
            dcb={"pfc": {"enabled": sorted(pfc)}} if isinstance(pfc, set) else pfc,
            rings={"receive": ring} if isinstance(ring, int) else ring,
            fec=FEC if up else {"modes": [], "automatic": True, "active": ""},
            link_modes=LINK_MODES if up else LINK_MODES | {"autonegotiation": False},
        )


def visible(machine: dict[str, dict[str, Any] | None]) -> dict[Setting, str]:
    """Return the readable settings that these tests change; PFC may depend on the link."""
    found: dict[Setting, str] = {}
    for interface, nic in machine.items():
        for name, value in (nic or {}).items():
            if name == "pfc" and isinstance(value, set):
                if nic and nic["carrier"]:
                    found[interface, name] = ",".join(map(str, sorted(value))) or "none"
            elif isinstance(value, int) and name != "carrier":
                found[interface, {"ring": "receive_ring"}.get(name, name)] = str(value)
    return found


class SettingsModel:
    """Model: a setting has changed if its value differs from the previous read."""

    def __init__(self) -> None:
        self.known: dict[Setting, str] = {}

    def read(self, now: dict[Setting, str]) -> list[tuple[str, str, str, str]]:
        changed = [k for k in now if self.known.get(k, now[k]) != now[k]]
        changes_seen = [(*key, self.known[key], now[key]) for key in changed]
        self.known |= now
        return changes_seen


@given(st.lists(STEP, max_size=12))
def test_any_sequence_of_settings_gives_the_events_of_the_model(
    steps: list[tuple[dict[str, dict[str, Any] | None], int]],
) -> None:
    host, model, source = FakeHost(), SettingsModel(), NicSettingsSource()
    reader = SourceReader(source, host, ORIGIN)
    for machine, probes in steps:
        for _ in range(probes):  # of the previous machine: its settings must not be reported later
            source.probe(host)
            host.clock.advance(2)
        put(host, machine)
        for _ in range(probes):
            source.probe(host)
            host.clock.advance(2)
        outcome = reader.run()
        assert sorted(changes(outcome)) == sorted(model.read(visible(machine)))
        host.clock.advance(60)
