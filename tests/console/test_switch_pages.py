"""Pages of switches: increases of both ends over one interval, unknown switches, cabling faults, bounds, names."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from console_site import TOKENS, Browser, browser, console, count_elements, report_nic
from hypothesis import given, strategies as st
from running_collector import RunningCollector
from support import switch_readings

from railscope.api import switches
from railscope.catalog import entities, switches as catalog
from railscope.frame import Entity
from railscope.reading import Absent
from railscope.timestamps import SECOND_NS
from railscope_collector.access.credentials import ANYONE, Role
from railscope_collector.config import IngestLimits, SwitchesSettings
from railscope_collector.console import page_rendering
from railscope_collector.console.counter_increases import (
    FELL,
    NO_END,
    NO_START,
    NOT_READ,
    CounterSample,
    StoredCounters,
)
from railscope_collector.console.curves import TimeRange
from railscope_collector.console.page_table import PAGES_BY_NAME, PageRequest, SwitchesQuery
from railscope_collector.switches import switch_reading
from railscope_collector.switches.switch_reading import MAX_PORTS

MAX_BYTES, MAX_ELEMENTS = 600_000, 6_000
PORT = switch_readings.port_name(1)
KEY = ("railscope_x_total", ("a",))
HOSTILE = "<img src=x onerror=alert(1)>"


def settings(directory: Path, rows: str = "") -> dict[str, Any]:
    file = directory / "cabling.csv"
    file.write_text("switch,port,node,interface\n" + rows)
    switches = SwitchesSettings(cabling_file=str(file))
    return {"limits": IngestLimits(), "switches": switches}


def prepare(running: RunningCollector) -> None:
    switch_readings.configure(running, "leaf-07", "leaf-08")


async def poll_twice(running: RunningCollector, grown: int = 1000, ports: int = 2) -> None:
    for seconds_ago, part in ((60, 0), (0, grown)):
        found = switch_readings.reading("leaf-07", ports, part)
        await switch_readings.poll(running, "leaf-07", found, seconds_ago)


async def twin(reader: Browser, path: str) -> Any:
    answer = await reader.get("/api/v1/pages" + path, Accept="application/json")
    assert answer.status == 200, answer.text
    return msgspec.json.decode(answer.text)


def path_of(port: str = PORT) -> str:
    return f"/switches/leaf-07/ports/{quote(port, safe='')}"


async def test_both_ends_of_a_link_have_increases_over_one_interval(tmp_path: Path) -> None:
    async with (
        console(tmp_path, prepare, **settings(tmp_path)) as running,
        browser(running.url) as reader,
    ):
        await poll_twice(running)
        await report_nic(running, (1000, 990), PORT)
        await reader.sign_in(TOKENS[Role.OPERATOR])
        page = await twin(reader, path_of())
        rows = {(row["quantity"], row["priority"]): row for row in page["compared"]}
        sent = rows["Bytes to the NIC", ""]
        assert (sent["switch"]["value"], sent["nic"]["value"], sent["difference"]) == (
            1000,
            1000,
            0,
        )
        paused = rows["Pause frames to the NIC", "3"]
        assert (paused["switch"]["value"], paused["nic"]["value"], paused["difference"]) == (
            1000,
            990,
            10,
        )
        assert ("Pause frames to the NIC", "4") not in rows, "neither end counted a pause"
        absent = rows["Packets to the NIC", ""]
        assert (absent["switch"]["value"], absent["nic"], absent["difference"]) == (
            0,
            {"value": None, "absent": NOT_READ},
            None,
        )
        shown_ns = page["interval"]["to_ns"] - page["interval"]["from_ns"]
        assert shown_ns == pytest.approx(60 * SECOND_NS, abs=5 * SECOND_NS), "by receipt"
        assert page["port"]["link"] == {
            "node": "n1",
            "interface": "eth0",
            "rail": "0",
            "gpu": "",
            "evidence": ["host_lldp"],
        }
        assert page["queues"][3]["marks"] == {"value": 1000, "absent": ""}
        assert page["queues"][3]["depth"] == {"value": 1009, "absent": ""}
        switch = await twin(reader, "/switches/leaf-07")
        port, other = switch["ports"]
        assert (port["state"], other["state"], other.get("link")) == ("up", "down", None)
        assert (port["pauses_sent"]["value"], port["marks"]["value"], port["dropped"]["value"]) == (
            1000,
            8000,
            0,
        )
        shown = (await reader.get("/nodes/n1")).text
        assert f'href="{path_of()}"' in shown, "the node's NIC leads to its switch port"
        for path in ("/switches", "/switches/leaf-07", path_of()):
            assert (await reader.get(path)).status == 200, path


async def test_switch_that_is_not_read_is_unknown_with_its_last_time(tmp_path: Path) -> None:
    async with (
        console(tmp_path, prepare, **settings(tmp_path)) as running,
        browser(running.url) as reader,
    ):
        await poll_twice(running)
        await report_nic(running, (1000, 0), PORT)
        running.collector.switches.polling.polled["leaf-07"].problem = "no answer in time"
        await reader.sign_in(TOKENS[Role.OPERATOR])
        rows = {row["switch"]: row for row in (await twin(reader, "/switches"))["rows"]}
        last, never = rows["leaf-07"], rows["leaf-08"]
        assert (last["state"], last["reason"], last["ports"], last["ports_up"]) == (
            "unknown",
            "no answer in time",
            2,
            None,
        )
        assert (
            last["newest_ns"]
            == running.collector.core.fleet.switches["switch/leaf-07"].rows["switch"].timestamp_ns
        )
        assert (never["state"], never["reason"], never["newest_ns"], never["age_seconds"]) == (
            "unknown",
            "not polled yet",
            None,
            None,
        )
        page = await twin(reader, path_of())
        port = page["port"]
        assert port["state"] == "unknown"
        assert port["link"]["node"] == "n1", "where the cable leads is known from the last poll"
        values = [port[name] for name in ("speed", "pauses_sent", "dropped", "depth")]
        assert all(value["value"] is None for value in values)
        assert page["interval"]["absent"] == "no answer in time"
        text = (await reader.get(path_of())).text
        assert "Increases are unknown: no answer in time." in text
        for row in page["compared"]:
            assert row["switch"]["value"] is row["nic"]["value"] is row["difference"] is None


async def test_cabling_fault_is_on_the_pages_of_its_switch(tmp_path: Path) -> None:
    rows = f"leaf-07,{PORT},n2,eth0\n"
    async with (
        console(tmp_path, prepare, **settings(tmp_path, rows)) as running,
        browser(running.url) as reader,
    ):
        await poll_twice(running)
        await report_nic(running, (0, 0), PORT)
        await reader.sign_in(TOKENS[Role.OPERATOR])
        for path in ("/switches", "/switches/leaf-07", path_of()):
            (fault,) = (await twin(reader, path))["cabling_faults"]
            assert (fault["kind"], fault["found"], fault["stated"]) == (
                "file_differs",
                {"node": "n1", "interface": "eth0"},
                {"node": "n2", "interface": "eth0"},
            )
            assert "file_differs" in (await reader.get(path)).text


async def test_facts_of_a_port_are_on_its_page_or_the_reason_for_their_absence(
    tmp_path: Path,
) -> None:
    def extended(grown: int) -> switch_reading.SwitchReading:
        found = switch_readings.reading("leaf-07", 1, grown)
        key = "leaf-07", PORT
        of_port, lane = Entity(entities.SWITCH_PORT, key), Entity(entities.SWITCH_LANE, (*key, "1"))
        group = Entity(entities.SWITCH_PRIORITY_GROUP, (*key, "3"))
        priority = Entity(entities.SWITCH_PRIORITY, (*key, "3"))
        streams = dict(found.streams) | {
            switch_reading.WATERMARKS: [((catalog.GROUP_HEADROOM_PEAK, group), 55)],
            switch_reading.LANES: [
                ((catalog.TRANSCEIVER_RECEIVE_POWER, lane), 831_764),
                ((catalog.TRANSCEIVER_TEMPERATURE, of_port), 52_000),
            ],
            "switch_priority_rates": [((catalog.PFC_SENT_RATE, priority), 830)],
            "switch_port_fec": [
                ((catalog.FEC_CORRECTED, of_port), 7 + grown),
                ((catalog.FEC_UNCORRECTABLE, of_port), Absent.ERROR),
            ],
        }  # fmt: skip
        return switch_reading.SwitchReading(streams)

    async with (
        console(tmp_path, prepare, **settings(tmp_path)) as running,
        browser(running.url) as reader,
    ):
        for seconds_ago, grown in ((60, 0), (0, 1000)):
            await switch_readings.poll(running, "leaf-07", extended(grown), seconds_ago)
        await reader.sign_in(TOKENS[Role.OPERATOR])
        page = await twin(reader, path_of())
        (group,) = page["priority_groups"]
        assert group["priority_group"] == "3"
        assert group["headroom_peak_share"] == {"value": 0.55, "absent": ""}
        assert group["headroom"] == {"value": None, "absent": "unsupported"}
        (lane,) = page["lanes"]
        assert lane["receive_power"]["value"] == pytest.approx(0.000831764)
        facts = {
            each["metric"].removeprefix("railscope_switch_"): each["value"]
            for each in page["facts"]
        }
        assert facts["port_receive_fec_corrected_frames_total"]["value"] == 1000
        assert facts["port_receive_fec_uncorrectable_frames_total"]["absent"] == "error"
        assert facts["port_receive_symbol_errors_total"]["absent"] == "unsupported"
        assert facts["port_transmit_pfc_pause_frames_per_second"]["value"] == 830
        assert facts["transceiver_temperature_celsius"]["value"] == 52
        text = (await reader.get(path_of())).text
        for shown in ("55 %", "-0.8 dBm", "52 °C", "830/s"):
            assert shown in text, shown
        answer = await reader.get("/api/v1/switches/leaf-07")
        (port,) = msgspec.json.decode(answer.text)["ports"]
        metrics = {(each["metric"], each.get("lane")) for each in port["readings"]}
        assert (catalog.TRANSCEIVER_RECEIVE_POWER.name, "1") in metrics
        assert (catalog.GROUP_HEADROOM_PEAK.name, None) in metrics


async def test_pages_of_a_large_switch_are_bounded(tmp_path: Path) -> None:
    async with (
        console(tmp_path, prepare, **settings(tmp_path)) as running,
        browser(running.url) as reader,
    ):
        for seconds_ago in (60, 0):
            found = switch_readings.reading(
                "leaf-07", MAX_PORTS, 60 - seconds_ago, "alias " * 40, HOSTILE * 8
            )
            await switch_readings.poll(running, "leaf-07", found, seconds_ago)
        await reader.sign_in(TOKENS[Role.OPERATOR])
        for path in (
            "/switches",
            "/switches/leaf-07",
            "/switches/leaf-07?offset=500",
            path_of(switch_readings.port_name(512)),
        ):
            answer = await reader.get(path)
            assert answer.status == 200, answer.text
            assert len(answer.text.encode()) < MAX_BYTES, path
            assert count_elements(answer.text).nodes < MAX_ELEMENTS, path
            assert HOSTILE not in answer.text
            assert len(msgspec.json.encode(await twin(reader, path))) < MAX_BYTES
        page = await twin(reader, "/switches/leaf-07?offset=500")
        assert (page["found"], len(page["ports"])) == (512, 12)


async def test_unknown_switches_and_ports_have_no_page(tmp_path: Path) -> None:
    async with (
        console(tmp_path, prepare, **settings(tmp_path)) as running,
        browser(running.url) as reader,
    ):
        await poll_twice(running)
        await reader.sign_in(TOKENS[Role.AUDITOR])
        for path in (
            "/switches/x",
            "/switches/x/ports/y",
            "/switches/leaf-07/ports/y",
            "/switches/leaf-08/ports/y",
        ):
            assert (await reader.get(path)).status == 404, path
        assert (await reader.get("/switches/leaf-08")).status == 200, "configured, and never read"


def test_nic_on_a_leaf_of_another_rail_is_shown_with_the_leaves_of_its_own() -> None:
    row = switches.CablingFault(
        "wrong_rail",
        "leaf-2",
        PORT,
        switches.LinkEnd("n1", "eth0"),
        switches.LinkEnd("", ""),
        ("leaf-1", "leaf-9"),
    )
    model = switches.SwitchList(0, (), (), 0, (row,), 1)
    asked = PageRequest(PAGES_BY_NAME["switches"], ANYONE, query=SwitchesQuery())
    text = page_rendering.render("switches.html", model=model, request=asked)
    assert "leaf-1 or leaf-9" in text


# Increases ---------------------------------------------------------------------------------------


def stored(*samples: tuple[int, int]) -> StoredCounters:
    return StoredCounters({KEY: [CounterSample(at * SECOND_NS, value) for at, value in samples]})


INTERVAL = TimeRange(100 * SECOND_NS, 160 * SECOND_NS)


@pytest.mark.parametrize(("samples", "expected"), [
    (((100, 5), (160, 9)), 4),
    (((90, 4), (101, 5), (130, 7), (159, 9), (170, 20)), 4),
    (((100, 5), (130, 4), (160, 9)), FELL),
    (((130, 5), (160, 9)), NO_START),
    (((100, 5), (130, 9)), NO_END),
    (((100, 5),), NO_END),
    ((), NOT_READ),
])  # fmt: skip
def test_an_increase_is_that_between_the_nearest_readings(
    samples: tuple[tuple[int, int], ...], expected: int | str
) -> None:
    assert stored(*samples).increase(KEY, INTERVAL) == expected


@given(st.lists(st.integers(0, 1 << 40), min_size=2, max_size=20), st.integers(0, 1 << 63))
def test_increases_are_exact_and_add_up(steps: list[int], start: int) -> None:
    values = [start + sum(steps[:n]) for n in range(len(steps))]
    found = stored(*enumerate(values))
    ends = [(0, len(values) // 2), (len(values) // 2, len(values) - 1)]
    parts = [
        found.increase(KEY, TimeRange(a * SECOND_NS, b * SECOND_NS)) for a, b in ends if a != b
    ]
    assert sum(part for part in parts if isinstance(part, int)) == values[-1] - values[0]
