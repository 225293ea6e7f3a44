"""Pages of switches: rates of both ends, unknown switches, cabling faults, bounds, names."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from console_site import TOKENS, Browser, browser, console, report_nic
from running_collector import RunningCollector
from support import switch_readings

from railscope.catalog import entities, switches as catalog
from railscope.frame import Entity
from railscope.reading import Absent
from railscope_collector.access.credentials import Role
from railscope_collector.config import IngestLimits, SwitchesSettings
from railscope_collector.switches import switch_reading

PORT = switch_readings.port_name(1)


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


async def document(reader: Browser, path: str) -> Any:
    answer = await reader.get(path, Accept="application/json")
    assert answer.status == 200, answer.text
    return msgspec.json.decode(answer.text)


def path_of(port: str = PORT) -> str:
    return f"/switches/leaf-07/ports/{quote(port, safe='')}"


async def test_both_ends_of_a_link_have_their_newest_rates(tmp_path: Path) -> None:
    async with (
        console(tmp_path, prepare, **settings(tmp_path)) as running,
        browser(running.url) as reader,
    ):
        await poll_twice(running)
        await report_nic(running, (1200, 600), PORT)
        await reader.sign_in(TOKENS[Role.OPERATOR])
        page = await document(reader, path_of())
        rows = {(row["quantity"], row["priority"]): row for row in page["compared"]}

        def ends(quantity: str, priority: str = "") -> Any:
            row = rows[quantity, priority]
            return [row[end]["value"] or row[end]["absent"] for end in ("switch", "nic")]

        assert ends("Bytes to the NIC") == [
            pytest.approx(1000 / 60, rel=0.01),
            pytest.approx(20, rel=0.01),
        ]
        assert rows["Bytes to the NIC", ""]["unit"] == "bytes per second"
        assert ends("Pause frames to the NIC", "3") == [
            pytest.approx(1000 / 60, rel=0.01),
            pytest.approx(10, rel=0.01),
        ]
        assert ("Pause frames to the NIC", "4") not in rows, "neither end counts a pause"
        assert rows["Packets to the NIC", ""]["switch"]["value"] == 0
        assert rows["Packets to the NIC", ""]["nic"]["absent"] == "unsupported"
        assert page["port"]["link"] == {
            "node": "n1",
            "interface": "eth0",
            "rail": "0",
            "gpu": "",
            "evidence": ["host_lldp"],
        }
        assert page["queues"][3]["marks"]["value"] == pytest.approx(1000 / 60, rel=0.01)
        assert page["queues"][3]["depth"] == {"value": 1009, "absent": ""}
        switch = await document(reader, "/switches/leaf-07")
        port, other = switch["ports"]
        assert (port["state"], other["state"], other.get("link")) == ("up", "down", None)
        values = [port[name]["value"] for name in ("pauses_sent", "marks", "dropped")]
        assert values == [pytest.approx(1000 / 60, rel=0.01), pytest.approx(8000 / 60, rel=0.01), 0]
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
        rows = {row["switch"]: row for row in (await document(reader, "/switches"))["rows"]}
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
        page = await document(reader, path_of())
        port = page["port"]
        assert port["state"] == "unknown"
        assert port["link"]["node"] == "n1", "where the cable leads is known from the last poll"
        values = [port[name] for name in ("speed", "pauses_sent", "dropped", "depth")]
        assert all(value["value"] is None for value in values)
        for row in page["compared"]:
            assert row["switch"] == {"value": None, "absent": "no answer in time"}
        assert page["compared"][0]["nic"]["value"] > 0, "the NIC still reports"


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
        page = await document(reader, path_of())
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
        assert facts["port_receive_fec_corrected_frames_total"]["value"] == pytest.approx(
            1000 / 60, rel=0.01
        )
        assert facts["port_receive_fec_uncorrectable_frames_total"]["absent"] == "error"
        assert facts["port_receive_symbol_errors_total"]["absent"] == "unsupported"
        assert facts["port_transmit_pfc_pause_frames_per_second"]["value"] == 830
        assert facts["transceiver_temperature_celsius"]["value"] == 52
        text = (await reader.get(path_of())).text
        for shown in ("55 %", "-0.8 dBm", "52 °C", "830/s"):
            assert shown in text, shown
