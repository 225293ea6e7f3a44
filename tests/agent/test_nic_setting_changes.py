"""Changes of NIC settings; a flapping link or an unreadable NIC is not a change."""

from __future__ import annotations

import errno
from typing import Any

from support.machine import FakeHost
from support.nics import (
    DCB,
    FEC,
    LINK_MODES,
    NET,
    PAUSE,
    QOS,
    RINGS,
    add_everything,
    add_netlink,
    add_nic,
    changes,
    events,
    facts,
    mainline,
    ofed,
)
from support.reading import ORIGIN, read_once, readings
from support.sampling import run_sampler

from railscope.exposition import Exposition, TextFormat
from railscope.reading import Absent
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sampling.status import OK
from railscope_agent.sources.nic_settings import NicSettingsSource
from railscope_agent.sources.source_bases import MAX_EVENTS

ETH0 = ("eth0",)
PFC = "railscope_nic_setting_pfc_enabled"


def test_settings_read_before_keep_their_columns_while_unreadable() -> None:
    host = mainline()
    reader = SourceReader(NicSettingsSource(), host, ORIGIN)
    before = readings(reader.run().frame)
    add_netlink(host, dcb=OSError(errno.EIO, "Input/output error"))
    for _ in range(3):
        host.clock.advance(60)
        after = readings(reader.run().frame)
        assert after.keys() == before.keys()
        assert after["railscope_nic_setting_port_buffer_bytes", ETH0] is Absent.ERROR
        assert after["railscope_nic_setting_ring_entries", ("eth0", "receive")] == 1024


def test_a_substitute_answer_is_not_compared_with_the_original() -> None:
    """The vendor's files may name a setting differently than netlink; a change is reported once."""
    host = ofed()
    reader = SourceReader(NicSettingsSource(), host, ORIGIN)
    reader.run()

    def read(dcb: Any, trust: str) -> list[tuple[str, str, str, str]]:
        add_netlink(host, dcb=dcb)
        host.files[f"{QOS}/trust"] = f"{trust}\n"
        host.clock.advance(60)
        outcome = reader.run()
        expected = trust if isinstance(dcb, OSError) else dcb["trust"][0]
        assert facts(outcome)["eth0"]["trust"] == expected
        return [change for change in changes(outcome) if change[1] == "trust"]

    fails, gone = OSError(errno.EIO, "I/O error"), OSError(errno.EOPNOTSUPP, "Not supported")
    by_dscp, by_pcp = {**DCB, "trust": ["dscp"]}, {**DCB, "trust": ["pcp"]}
    assert read(by_dscp, "both") == []
    assert read(fails, "both") == []
    assert read(by_pcp, "one") == [("eth0", "trust", "dscp", "pcp")]
    assert read(fails, "one") == []
    assert read(fails, "other") == []
    assert read(by_dscp, "other") == [("eth0", "trust", "pcp", "dscp")]
    assert read(gone, "other") == [], "from now on the file is what counts"
    assert read(gone, "none") == [("eth0", "trust", "other", "none")]


def test_a_link_that_goes_down_while_it_is_read_changes_no_setting() -> None:
    host = mainline()
    host.files[f"{NET}/eth0/carrier_changes"] = "2\n"
    reader = SourceReader(NicSettingsSource(), host, ORIGIN)
    reader.run()

    def goes_down_and_comes_up() -> dict[str, Any]:
        host.files[f"{NET}/eth0/carrier_changes"] = "4\n"
        return {**DCB, "pfc": {**DCB["pfc"], "enabled": []}}

    add_netlink(host, dcb=goes_down_and_comes_up)
    host.clock.advance(60)
    assert not events(reader.run())


def test_a_slow_probe_is_not_repeated_by_the_read() -> None:
    host = mainline()

    def slow() -> dict[str, Any]:
        host.clock.advance(5)
        return RINGS

    add_netlink(host, rings=slow)
    read_once(NicSettingsSource(), host)
    assert host.asked["netlink.rings(eth0)"] == 1


def test_a_change_is_one_event_with_before_and_after() -> None:
    host = mainline()
    reader = SourceReader(NicSettingsSource(), host, ORIGIN)
    reader.run()
    host.clock.advance(60)
    add_netlink(host, dcb={**DCB, "pfc": {**DCB["pfc"], "enabled": [3, 4]}})
    host.files[f"{NET}/eth0/mtu"] = "1500\n"
    outcome = reader.run()
    assert sorted(changes(outcome)) == [
        ("eth0", "mtu", "4200", "1500"),
        ("eth0", "pfc", "3", "3,4"),
    ]
    now = host.clock.now()
    assert {(e.wall_ns, e.boot_ns) for e in events(outcome)} == {(now.wall_ns, now.boot_ns)}
    assert facts(outcome)["eth0"]["pfc"] == "3,4", "the facts are those of the same instant"
    host.clock.advance(60)
    assert not events(reader.run())


def test_a_flapping_link_changes_no_setting() -> None:
    """Not even if the driver reports the negotiated value in place of the configured one."""
    host = mainline()
    reader = SourceReader(NicSettingsSource(), host, ORIGIN)
    reader.run()
    down: dict[str, Any] = {"autonegotiation": False, "supported": LINK_MODES["supported"]}
    for number in range(4):
        host.clock.advance(60)
        up = bool(number % 2)
        host.files[f"{NET}/eth0/carrier"] = f"{int(up)}\n"
        add_everything(host)
        if not up:
            no_pfc = {**DCB, "pfc": {**DCB["pfc"], "enabled": []}}
            add_netlink(host, link_modes=down, fec={**FEC, "active": ""}, dcb=no_pfc)
        outcome = reader.run()
        assert not events(outcome)
        assert not outcome.missing_count, "a link that is down is not a source that fails"
        found = readings(outcome.frame)
        assert found["railscope_nic_link_lanes", ETH0] == (4 if up else Absent.UNSUPPORTED)
        assert found[PFC, ("eth0", "3")] == int(up), "the metrics have the value of the driver"


def test_a_change_while_the_link_was_down_is_reported_when_it_is_up() -> None:
    host = mainline()
    reader = SourceReader(NicSettingsSource(), host, ORIGIN)
    reader.run()
    for carrier, expected in ((0, []), (1, [("eth0", "pause", "none", "transmit")])):
        host.clock.advance(60)
        host.files[f"{NET}/eth0/carrier"] = str(carrier)
        add_netlink(host, pause={**PAUSE, "transmit": True})
        assert changes(reader.run()) == expected


def test_a_nic_that_is_gone_is_reported_once_and_compared_on_return() -> None:
    host = mainline()
    add_nic(host, "eth1", "bnxt_en", "0000:5e:00.0")
    reader = SourceReader(NicSettingsSource(), host, ORIGIN)
    first = readings(reader.run().frame)
    files, links = dict(host.files), dict(host.links)
    host.files = {path: text for path, text in files.items() if "/eth1/" not in path}
    host.links = {path: text for path, text in links.items() if "/eth1/" not in path}
    label = ("railscope_nic_setting_mtu_bytes", ("eth1",))
    assert first[label] == 4200
    assert readings(reader.run().frame)[label] is Absent.GONE
    outcome = reader.run()
    assert label not in readings(outcome.frame)
    assert not events(outcome)
    host.files, host.links = files | {f"{NET}/eth1/mtu": "9000"}, links
    assert changes(reader.run()) == [("eth1", "mtu", "4200", "9000")]


def test_changes_beyond_the_bound_are_counted() -> None:
    host = FakeHost()
    nic_count = MAX_EVENTS + 7
    for number in range(nic_count):
        add_nic(host, f"eth{number}", "ice", f"0000:{number:02x}:00.0")
    reader = SourceReader(NicSettingsSource(), host, ORIGIN)
    reader.run()
    host.clock.advance(60)
    for number in range(nic_count):
        host.files[f"{NET}/eth{number}/mtu"] = "1500"
    outcome = reader.run()
    assert len(changes(outcome)) == MAX_EVENTS
    (more,) = [e for e in events(outcome) if e.event_class.name == "nic_changes_suppressed"]
    assert more.facts == {"event": "nic_setting_changed", "changes": "7"}
    assert more.entity.kind.name == "node"


def test_a_long_setting_is_cut_and_its_change_is_still_seen() -> None:
    host = FakeHost()
    add_nic(host)
    entries = [
        {"selector": "stream", "protocol": port, "priority": 1} for port in range(5000, 5100)
    ]
    add_netlink(host, dcb={"applications": entries})
    reader = SourceReader(NicSettingsSource(), host, ORIGIN)
    text = facts(reader.run())["eth0"]["applications"]
    assert len(text) < 250
    entries[-1] = {"selector": "stream", "protocol": 5099, "priority": 2}
    host.clock.advance(60)
    ((_, setting, before, after),) = changes(reader.run())
    assert (setting, before) == ("applications", text)
    assert before != after


def test_a_poll_costs_each_nic_one_call_of_a_kind() -> None:
    """The read reuses the answers of the probe: firmware is not queried twice."""
    host = mainline()
    reader = SourceReader(NicSettingsSource(), host, ORIGIN)
    for _ in range(3):
        reader.run()
        host.clock.advance(60)
    asked = {key: count for key, count in host.asked.items() if key.startswith("netlink.")}
    assert set(asked.values()) == {3}
    assert len(asked) == 5


async def test_the_page_has_the_facts_of_the_last_read() -> None:
    """A probe precedes every read, and the schema changes only with a fact."""
    host = mainline()
    async with run_sampler(host, [NicSettingsSource()]) as run:
        await run.step(60)
        host.files[f"{NET}/eth0/mtu"] = "9000\n"
        await run.step(60)
        await run.step(60)
        first, second, third, fourth = run.frames
        assert first.schema is second.schema
        assert third.schema is fourth.schema
        assert run.sampler.statuses["nic_settings"].state == OK
        page = Exposition().render([third], TextFormat.PROMETHEUS)
    assert 'settings_info{interface="eth0",firmware="28.39.1002",mtu="9000",' in page
    assert 'railscope_nic_setting_mtu_bytes{interface="eth0"} 9000' in page
    assert 'railscope_nic_fec_active{interface="eth0",state="rs"} 1' in page
    assert 'ecn_notification=""' in page
