"""Properties of NIC settings: any change is reported once despite failures and probes."""

from __future__ import annotations

import errno
from typing import Any

from hypothesis import given, strategies as st
from support.machine import DENIED, FakeHost
from support.nics import FEC, LINK_MODES, NET, add_netlink, add_nic, changes
from support.reading import ORIGIN

from railscope.catalog import nic_settings as c
from railscope.reading import PRESENT, Absent
from railscope_agent.sampling.row_builder import RowBuilder
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.nic_interfaces import SettingAnswers
from railscope_agent.sources.nic_setting_parsers import add_dscp_map, parameter_name
from railscope_agent.sources.nic_settings import NicSettingsSource
from railscope_agent.topology.network_interface import NetworkInterface

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


@given(st.lists(STEP, min_size=1, max_size=6))
def test_a_read_long_after_the_probe_reports_current_settings(
    steps: list[tuple[dict[str, dict[str, Any] | None], int]],
) -> None:
    """The columns are those of the probe, even if their NICs have changed."""
    host, source = FakeHost(), NicSettingsSource()
    for machine, _ in steps:
        columns = source.probe(host).columns
        put(host, machine)
        host.clock.advance(2)
        table = RowBuilder(len(columns))
        source.read(host, table)
        assert table.needs_probe, "so that the next read has the columns of what is there now"
        for position, (metric, entity) in enumerate(columns):
            nic = machine[entity.key[0]]
            if metric is c.MTU and nic is None:
                assert table.reasons[position] == Absent.GONE.value
            elif metric is c.MTU and nic and isinstance(nic["mtu"], int):
                assert (table.values[position], table.reasons[position]) == (nic["mtu"], PRESENT)


@given(st.dictionaries(st.integers(0, 63), st.integers(0, 7)))
def test_a_map_of_dscps_can_be_read_back(priority_of: dict[int, int]) -> None:
    dscp: dict[int, list[int]] = {}
    for code, priority in priority_of.items():
        dscp.setdefault(priority, []).append(code)
    answers = SettingAnswers(NetworkInterface("eth0"))
    add_dscp_map(answers, dscp)
    text = answers.texts["dscp_map"]
    if len(text) > 200:  # truncated, with its digest
        return
    found = {}
    for entry in text.split(",") if dscp else []:
        priority, _, spans = entry.partition(":")
        for span in spans.split("+"):
            first, _, last = span.partition("-")
            found |= dict.fromkeys(range(int(first), int(last or first) + 1), int(priority))
    assert found == priority_of


@given(st.permutations(range(64)))
def test_the_order_of_a_map_of_dscps_does_not_matter(codes: list[int]) -> None:
    answers = SettingAnswers(NetworkInterface("eth0"))
    add_dscp_map(answers, {0: codes})
    assert answers.texts["dscp_map"] == "0:0-63"


def test_names_of_parameters_are_those_of_the_kernel() -> None:
    """All of the vendor's files, and what drivers/infiniband/hw/mlx5/cong.c calls the same."""
    np = {"cnp_dscp", "cnp_802p_prio", "min_time_between_cnps"}
    rp = {
        "clamp_tgt_rate", "clamp_tgt_rate_after_time_inc", "rpg_time_reset", "rpg_byte_reset",
        "rpg_threshold", "rpg_max_rate", "rpg_ai_rate", "rpg_hai_rate", "rpg_min_dec_fac",
        "rpg_min_rate", "rate_to_set_on_first_cnp", "dce_tcp_g", "dce_tcp_rtt",
        "rate_reduce_monitor_period", "initial_alpha_value", "rpg_gd",
    }  # fmt: skip
    assert {parameter_name("np", n) for n in np} | {parameter_name("rp", n) for n in rp} == {
        "rp_clamp_tgt_rate", "rp_clamp_tgt_rate_ati", "rp_time_reset", "rp_byte_reset",
        "rp_threshold", "rp_ai_rate", "rp_max_rate", "rp_hai_rate", "rp_min_dec_fac", "rp_min_rate",
        "rp_rate_to_set_on_first_cnp", "rp_dce_tcp_g", "rp_dce_tcp_rtt",
        "rp_rate_reduce_monitor_period", "rp_initial_alpha_value", "rp_gd",
        "np_min_time_between_cnps", "np_cnp_dscp", "np_cnp_prio",
    }  # fmt: skip
