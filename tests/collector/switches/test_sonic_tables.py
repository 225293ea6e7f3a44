"""Readings of SONiC's tables: exact numbers, hostile names and values, and recorded tables."""

from __future__ import annotations

import gzip
import json
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.shared import capture_path

from railscope.frame import NodeTimestamp
from railscope.reading import Absent, Reading
from railscope_collector.switches import (
    sonic_reader,
    sonic_tables as tables,
    switch_frames,
    switch_reading as base,
)
from railscope_collector.switches.fact_readings import KnownSwitch
from railscope_collector.switches.switch_reading import SwitchReadError, SwitchReading


def values(reading: SwitchReading) -> dict[tuple[str, ...], Reading]:
    return {
        (metric.name.removeprefix("railscope_switch_"), *entity.key[1:]): value
        for part in reading.streams.values()
        for (metric, entity), value in part
    }


@given(
    st.one_of(
        st.integers(min_value=1 << 64),
        st.integers(max_value=-1),
        st.floats(),
        st.booleans(),
        st.lists(st.integers()),
        st.text(min_size=1).filter(lambda text: not re.fullmatch(r"\s*(N/A|[0-9]*)\s*", text)),
        st.sampled_from(["1e3", "1.0", "+1", "1_000", "٣", "0x10", "-0", "9" * 30, "9" * 10_000]),
    )
)
def test_other_values_than_numbers_of_64_bits_are_errors(value: object):
    assert base.as_number(value) is Absent.ERROR


@pytest.mark.parametrize("value", [None, "", " ", "N/A"])
def test_what_is_not_counted_is_unsupported_and_never_zero(value: object):
    assert base.as_number(value) is Absent.UNSUPPORTED


@given(st.binary(max_size=300))
def test_any_message_is_a_table_or_an_error_of_the_switch(body: bytes):
    try:
        table = sonic_reader.decode_answer(body, "COUNTERS_DB")
    except SwitchReadError:
        return
    assert isinstance(table, tables.SonicTable)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
NAMES = st.sampled_from(
    ["Ethernet0", "Ethernet4", "etp1", "etp2", "Ethernet0:3", "etp1:3", "::", ""]
)
FIELDS = st.sampled_from([
    "alias", "speed", "oper_status", "SAI_PORT_STAT_IF_IN_OCTETS", "SAI_PORT_STAT_PFC_3_RX_PKTS", "PFC_WD_STATUS",
    "SAI_QUEUE_STAT_PACKETS", "lldp_rem_sys_name", "SAI_BUFFER_POOL_STAT_WATERMARK_BYTES",
])  # fmt: skip
TABLES = st.builds(
    tables.SonicTable,
    st.dictionaries(NAMES | st.text(), st.dictionaries(FIELDS | st.text(), JSON, max_size=4), max_size=4),
    st.sampled_from([None, None, Absent.UNSUPPORTED, Absent.TIMEOUT]),
)  # fmt: skip


@given(st.lists(TABLES, min_size=7, max_size=7))
def test_any_tables_become_frames_of_unique_entities_or_an_error_of_the_switch(
    given_tables: list[tables.SonicTable],
):
    try:
        reading = tables.make_reading("leaf-07", tables.SonicTables(*given_tables), KnownSwitch())
    except SwitchReadError:
        return
    for part in reading.streams.values():
        columns = [(metric.name, entity.key) for (metric, entity), _ in part]
        assert len(columns) == len(set(columns))
    frames = switch_frames.SwitchFrames("leaf-07", "run", has_narrow_counters=False)
    made = frames.frames(reading, NodeTimestamp(1, 1))
    switch_frames.pack_frames(made, NodeTimestamp(2, 2), with_schemas=True)


@pytest.mark.parametrize(
    ("keys", "port"),
    [
        ({"Ethernet0": {}}, "Ethernet0"),
        ({"etp1": {}}, "Ethernet0"),
        ({"Ethernet8": {}}, "Ethernet8"),
    ],
)
def test_ports_have_the_name_of_the_switch_whether_it_returns_names_or_aliases(
    keys: dict[str, Any], port: str
):
    states = tables.SonicTable({"Ethernet0": {"alias": "etp1"}})
    found = tables.SonicTables(tables.SonicTable(keys), states)
    reading = tables.make_reading("leaf-07", found, KnownSwitch())
    assert ("port_receive_bytes_total", port) in values(reading)


def test_a_damaged_row_is_an_error_of_its_own_values_only():
    octets = {"SAI_PORT_STAT_IF_IN_OCTETS": "7"}
    found = tables.SonicTables(
        tables.SonicTable({"Ethernet0": None, "Ethernet4": octets}),
        tables.SonicTable({"Ethernet0": {"speed": "1"}, "Ethernet4": ["up"]}),
    )
    read = values(tables.make_reading("leaf-07", found, KnownSwitch()))
    metrics = "port_receive_bytes_total", "port_up", "port_speed_bytes_per_second"
    assert [[read[metric, port] for metric in metrics] for port in ("Ethernet0", "Ethernet4")] == [
        [Absent.ERROR, Absent.UNSUPPORTED, 1],
        [7, Absent.ERROR, Absent.ERROR],
    ]


COLLISION = {"Ethernet47": "Ethernet48", "Ethernet48": "Ethernet49/1"}
"""Aliases by name; one is the name of another port."""


@pytest.mark.parametrize(
    ("aliases", "keys", "queue_keys", "expected"),
    [
        (COLLISION, ["Ethernet48", "Ethernet49/1"], ["Ethernet48", "Ethernet49/1"], ["Ethernet47", "Ethernet48"] * 2),
        (COLLISION, ["Ethernet48", "Ethernet49/1"], ["Ethernet48"], ["Ethernet47", "Ethernet48", "Ethernet47"]),
        (COLLISION, ["Ethernet48", "Ethernet49/1"], ["Ethernet47"], ["Ethernet47", "Ethernet48", "Ethernet47"]),
        (COLLISION, ["Ethernet47", "Ethernet48"], ["Ethernet47", "Ethernet48"], ["Ethernet47", "Ethernet48"] * 2),
        (COLLISION, ["Ethernet47", "Ethernet48"], ["Ethernet48"], ["Ethernet47", "Ethernet48", "Ethernet48"]),
        ({"Ethernet0": "Ethernet0"}, ["Ethernet0"], ["Ethernet0"], ["Ethernet0"] * 2),
        ({"Ethernet0": "etp1a", "Ethernet2": "etp1b"}, ["etp1a", "etp1b"], ["Ethernet2"], ["Ethernet0", "Ethernet2", "Ethernet2"]),
        (COLLISION, ["Ethernet47", "Ethernet48", "deleted"], [], ["Ethernet47", "Ethernet48", "deleted"]),
    ],
)  # fmt: skip
def test_keys_of_rows_are_aliases_only_where_some_key_is_no_name(
    aliases, keys, queue_keys, expected
):
    """`expected` has the port of each key, those of queues last; each row counts 1, 2, 3 and so on."""
    found = tables.SonicTables(
        tables.SonicTable({key: {"SAI_PORT_STAT_IF_IN_OCTETS": str(n)} for n, key in enumerate(keys)}),
        tables.SonicTable({name: {"alias": alias} for name, alias in aliases.items()}),
        tables.SonicTable({f"{key}:3": {"SAI_QUEUE_STAT_BYTES": str(n)} for n, key in enumerate(queue_keys)}),
    )  # fmt: skip
    read = values(tables.make_reading("leaf-07", found, KnownSwitch()))
    read = {key: value for key, value in read.items() if not isinstance(value, Absent)}
    ports = {(key[1], n) for key, n in read.items() if key[0] == "port_receive_bytes_total"}
    queues = {(key[1], n) for key, n in read.items() if key[0] == "queue_transmit_bytes_total"}
    assert ports == {(port, n) for n, port in enumerate(expected[: len(keys)])}
    assert queues == {(port, n) for n, port in enumerate(expected[len(keys) :])}


def test_recorded_answers_of_one_port():
    def load(name: str) -> dict[str, Any]:
        return json.loads(
            capture_path(f"switch/sonic/gnmi-COUNTERS-Ethernet68{name}.json").read_text()
        )

    aliases = json.loads(capture_path("switch/sonic/gnmi-COUNTERS_PORT_ALIAS_MAP.json").read_text())
    states = {key.removeprefix("PORT|"): row for key, row in aliases.items()}
    found = tables.SonicTables(
        tables.SonicTable({"Ethernet68/1": load("")}),
        tables.SonicTable(states),
        tables.SonicTable(load("-Queues")),
    )
    facts = KnownSwitch()
    read = values(tables.make_reading("leaf-07", found, facts))
    assert read["port_receive_pfc_pause_frames_total", "Ethernet68", "7"] == 2
    assert read["port_receive_bytes_total", "Ethernet68"] == 0
    assert read["queue_pfc_watchdog_storm", "Ethernet68", "3"] == 0
    assert read["queue_pfc_watchdog_storm", "Ethernet68", "1"] is Absent.UNSUPPORTED
    assert read["queue_ecn_marked_packets_total", "Ethernet68", "1"] is Absent.UNSUPPORTED
    assert facts.missing == {
        "PORT_TABLE": False,
        "estimated pause time": True,
        "queues": False,
        "WRED_ECN_QUEUE": True,
        "PFC watchdog": False,
    }


@pytest.mark.parametrize("name", ["t1-counter_db", "mock-counters_db"])
def test_recorded_databases(name: str):
    database = json.loads(
        gzip.decompress(capture_path(f"switch/sonic/{name}.json.gz").read_bytes())
    )

    def table(name_map: str, prefix: str = "COUNTERS") -> dict[str, Any]:
        names = database.get(name_map, {})
        names = names.get("value", names)
        rows = {key: database.get(f"{prefix}:{oid}", {}) for key, oid in names.items()}
        return {key: row.get("value", row) for key, row in rows.items()}

    all_ports = table("COUNTERS_PORT_NAME_MAP")
    ports = {key: row for key, row in all_ports.items() if key.startswith("Ethernet")}
    queues = table("COUNTERS_QUEUE_NAME_MAP")
    groups = table("COUNTERS_PG_NAME_MAP", "PERIODIC_WATERMARKS")
    pools = table("COUNTERS_BUFFER_POOL_NAME_MAP", "PERIODIC_WATERMARKS")
    made = map(tables.SonicTable, (ports, {}, queues, groups, pools))
    facts = KnownSwitch()
    read = values(tables.make_reading("leaf-07", tables.SonicTables(*made), facts))
    assert Absent.ERROR not in read.values()
    for port, row in ports.items():
        for field, metric in (
            ("IF_IN_OCTETS", "bytes"),
            ("IF_IN_FEC_CORRECTABLE_FRAMES", "fec_corrected_frames"),
            ("IF_IN_FEC_NOT_CORRECTABLE_FRAMES", "fec_uncorrectable_frames"),
        ):
            expected = row.get(f"SAI_PORT_STAT_{field}")
            received = read[f"port_receive_{metric}_total", port]
            assert received == (int(expected) if expected else Absent.UNSUPPORTED)
    for key, row in queues.items():
        port, _, number = key.rpartition(":")
        if int(number) < 8 and port in ports and "SAI_QUEUE_STAT_PACKETS" in row:
            packets = read["queue_transmit_packets_total", port, number]
            assert packets == int(row["SAI_QUEUE_STAT_PACKETS"])
    has_pauses = name.startswith("mock")
    assert facts.missing["estimated pause time"] is not has_pauses
    assert facts.missing["WRED_ECN_QUEUE"] is not has_pauses
    if has_pauses:
        port = "Ethernet0"
        estimated = read["port_receive_pfc_pause_estimated_seconds_total", port, "3"]
        assert estimated == int(ports[port]["EST_PORT_STAT_PFC_3_RX_PAUSE_DURATION_US"])
