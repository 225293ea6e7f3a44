"""Tables of SNMP as readings: any rows, of any type, are readings or an error of the switch."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from support.schemas import wire_schema

from railscope.catalog import switches as catalog
from railscope.frame import Schema
from railscope.reading import Absent
from railscope_collector.switches import snmp_columns, snmp_tables as tables
from railscope_collector.switches.snmp_values import TableRows
from railscope_collector.switches.switch_reading import (
    MAX_TEXT,
    NEIGHBOURS,
    PORTS,
    PRIORITY,
    SWITCH,
    SwitchReadError,
)

VALUES = st.one_of(
    st.none(), st.booleans(), st.floats(), st.integers(-5, 1 << 65), st.binary(max_size=12), st.text(max_size=5)
)  # fmt: skip
ROWS = st.dictionaries(
    st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), VALUES, max_size=6
)


def of(columns: dict[str, dict[tuple[int, ...], object]]) -> TableRows:
    return TableRows(columns)


def ports(count: int, **more: object) -> TableRows:
    columns: dict[str, dict[tuple[int, ...], object]] = {
        "ifType": {(n,): 6 for n in range(1, count + 1)},
        "ifName": {(n,): f"Ethernet{n}".encode() for n in range(1, count + 1)},
    }
    return of(columns | {name: {(1,): value} for name, value in more.items()})


@given(
    st.dictionaries(st.sampled_from(list(snmp_columns.IF_COLUMNS)), ROWS),
    st.dictionaries(st.sampled_from(list(snmp_columns.NEIGHBOUR_COLUMNS)), ROWS),
    st.sampled_from(sorted(snmp_columns.VENDOR_TABLES)),
    st.data(),
    st.dictionaries(st.sampled_from(list(snmp_columns.SCALARS)), VALUES),
)
def test_any_rows_are_schemas_within_the_bounds_or_an_error(
    interfaces, neighbours, vendor, data, scalars
):
    interfaces["ifType"] = {(1,): 6, (2,): 6} | interfaces.get("ifType", {})
    optional = {
        table: of(
            data.draw(
                st.dictionaries(st.sampled_from(list(snmp_columns.TABLE_COLUMNS[table])), ROWS)
            )
        )
        for table in snmp_columns.VENDOR_TABLES[vendor]
    }
    found = tables.SwitchTables(scalars, of(interfaces), optional, of(neighbours))
    try:
        reading = tables.make_reading("leaf-07", found)
    except SwitchReadError:
        return
    for name, part in reading.streams.items():
        columns = [column for column, _ in part]
        keys = [(metric.name, entity.key) for metric, entity in columns]
        assert len(set(keys)) == len(keys), "no series twice"
        wire_schema(Schema(name, tuple(columns)))
        assert all(isinstance(value, int | Absent) for _, value in part)


def test_switch_without_ports_is_an_error_with_a_remedy():
    with pytest.raises(SwitchReadError, match="permit IF-MIB"):
        tables.make_reading("leaf-07", tables.SwitchTables({}, of({})))


def test_column_that_ends_early_is_an_error_and_no_port_is_gone_or_has_another_name():
    columns = dict(ports(3).columns)
    names = {(n,): f"etp{n}".encode() for n in range(1, 4)}
    for column in ("ifType", "ifName"):
        cut = {index: columns[column][index] for index in [(1,), (2,)]}
        found = tables.SwitchTables({}, of(columns | {"ifDescr": names, column: cut}))
        with pytest.raises(SwitchReadError, match=f"{column} ends early"):
            tables.make_reading("leaf-07", found)


def test_long_and_unprintable_texts_are_cut_and_escaped():
    rows = ports(1, ifAlias=b"\x00\xff\x1b[31m" + b"a" * 5000)
    reading = tables.make_reading("leaf-07", tables.SwitchTables({}, rows))
    alias = reading.streams[PORTS][0][0][1].facts["alias"]
    assert len(alias) <= MAX_TEXT
    assert alias.isprintable()
    assert alias.startswith("\\x00\\xff\\x1b[31m")


@pytest.mark.parametrize(
    ("status", "value"), [
        (1, 1), (2, 0), (7, 0), (4, Absent.ERROR), (0, Absent.ERROR), (99, Absent.ERROR), (b"up", Absent.ERROR),
        (None, Absent.UNSUPPORTED),
    ]
)  # fmt: skip
def test_state_of_a_port(status, value):
    rows = ports(1, **({} if status is None else {"ifOperStatus": status}))
    reading = tables.make_reading("leaf-07", tables.SwitchTables({}, rows))
    values = {metric: each for (metric, _), each in reading.streams[PORTS]}
    assert values[catalog.PORT_UP] == value or values[catalog.PORT_UP] is value


def test_table_that_failed_has_its_reason_and_is_not_missing():
    failed = TableRows(failure=Absent.TIMEOUT)
    optional = dict.fromkeys(snmp_columns.VENDOR_TABLES["sonic"], failed)
    found = tables.SwitchTables({}, ports(1), optional, failed)
    reading = tables.make_reading("leaf-07", found)
    assert {value for _, value in reading.streams[PRIORITY]} == {Absent.TIMEOUT}
    assert {value for _, value in reading.streams[NEIGHBOURS]} == {Absent.TIMEOUT}
    assert reading.streams[SWITCH][0][0][1].facts["missing_tables"] == ""


def test_newest_neighbour_of_a_port_counts():
    rows = of(
        {
            "chassis": {(1, 1, 1): b"old", (9, 1, 2): b"new"},
            "system_name": {(1, 1, 1): b"n1", (9, 1, 2): b"n2"},
        }
    )
    found = tables.SwitchTables({}, ports(1), neighbours=rows)
    ((_, entity), known), *_ = tables.make_reading("leaf-07", found).streams[NEIGHBOURS]
    assert known == 1
    assert entity.facts["system_name"] == "n2"
    assert (entity.facts["other_system_names"], entity.facts["other_chassis"]) == ("n1", "old")


ONE_MAC, ALIKE = bytes([2, 0, 0, 0, 0, 9]), ("server",) * 3
OWN_MACS = tuple(bytes([2, 0, 0, 0, 0, n]) for n in range(1, 4))
NUMBERS = (b"1", b"2", b"3")
IN_ORDER, SECOND_AND_FIRST, NONE = {1: 1, 2: 2, 3: 3}, {1: 2, 2: 1, 3: 3}, {}


@pytest.mark.parametrize(
    ("aliases", "macs", "first_index", "local", "descriptions", "expected"),
    [
        (("", "", ""), OWN_MACS, 1, (b"Ethernet2", b"Ethernet1", b"Ethernet3"), (), SECOND_AND_FIRST),
        (ALIKE, OWN_MACS, 1, (OWN_MACS[1], OWN_MACS[0], OWN_MACS[2]), (), SECOND_AND_FIRST),
        (("a", "b", "Ethernet1"), OWN_MACS, 1001, (b"Ethernet1", b"b", b"Ethernet3"), (), IN_ORDER),
        (("swp1", "swpx02", "c"), OWN_MACS, 1001, (b"swp1", b"swpx02", b"c"), (), IN_ORDER),
        (ALIKE, (ONE_MAC, ONE_MAC, OWN_MACS[2]), 1001, (ONE_MAC,) * 3, ("Ethernet1", "Ethernet2", "Ethernet3"), IN_ORDER),
        (ALIKE, (ONE_MAC,) * 3, 1001, (ONE_MAC,) * 3, ALIKE, NONE),
        (ALIKE, (ONE_MAC,) * 3, 1001, (b"1002", b"1001", b"1003"), ALIKE, SECOND_AND_FIRST),
        (ALIKE, (ONE_MAC,) * 3, 1, (b"x", b"y", b"z"), ALIKE, IN_ORDER),
        (ALIKE, OWN_MACS, 1, NUMBERS, ("Ethernet2", "Ethernet1", "a port that was deleted"), SECOND_AND_FIRST),
        (ALIKE, OWN_MACS, 2, (b"Ethernet1", b"deleted", b"Ethernet2"), (), {1: 1, 3: 2}),
        (ALIKE, OWN_MACS, 2, (b"Ethernet1", b"deleted", b"deleted, too"), (), {1: 1}),
        (ALIKE, (ONE_MAC, b"", b""), 1001, (ONE_MAC,) * 3, ALIKE, NONE),
        (ALIKE, (ONE_MAC, b"", b""), 1001, (ONE_MAC,) * 3, ("x", "Ethernet2", "Ethernet3"), {2: 2, 3: 3}),
        (("Ethernet2", "Ethernet1", "c"), OWN_MACS, 1001, (b"Ethernet2", b"Ethernet1", b"c"), ("Ethernet1", "Ethernet2", "Ethernet3"), IN_ORDER),
    ],
)  # fmt: skip
def test_local_port_of_lldp_is_the_one_that_its_texts_name_alone_or_else_its_index(  # noqa: PLR0913, PLR0917 - columns of one table
    aliases, macs, first_index, local, descriptions, expected
):
    """`expected` has the number of the port for each number of LLDP."""
    names = dict.fromkeys(("ifType", "ifName", "ifAlias", "ifPhysAddress"))
    values = [6] * 3, [b"Ethernet1", b"Ethernet2", b"Ethernet3"], aliases, macs
    interfaces = {
        column: {(first_index + n,): value for n, value in enumerate(of_ports)}
        for column, of_ports in zip(names, values, strict=True)
    }
    numbers = range(1, 4)
    rows = of({
        "chassis": {(0, n, 1): b"c" for n in numbers},
        "system_name": {(0, n, 1): f"{n}".encode() for n in numbers},
        "local_port": {(n,): local[n - 1] for n in numbers},
        "local_description": {(n + 1,): text.encode() for n, text in enumerate(descriptions)},
    })  # fmt: skip
    found = tables.SwitchTables({}, of(interfaces), neighbours=rows)
    readings = tables.make_reading("leaf-07", found).streams[NEIGHBOURS]
    assert {
        int(entity.facts["system_name"]): int(entity.key[1].removeprefix("Ethernet"))
        for (_, entity), known in readings
        if known
    } == expected


@pytest.mark.parametrize(
    ("local", "kind", "announced"),
    [
        ((b"1001", b"1002"), 7, ("1001", "1002")),
        (OWN_MACS[:2], 3, ("02:00:00:00:00:01", "02:00:00:00:00:02")),
        ((b"Ethernet2", b"Ethernet1"), 5, ("Ethernet1", "Ethernet2")),
        ((b"deleted", b""), 7, ("", "")),
    ],
)
def test_the_port_id_that_a_switch_announces_for_a_port_is_a_fact_of_it(local, kind, announced):
    """Junos announces the index of an interface, and the operator's text as description (LLDP-MIB lldpLocPortId)."""
    values = [6, 6], [b"Ethernet1", b"Ethernet2"], [b"server", b"server"], OWN_MACS
    names = ("ifType", "ifName", "ifAlias", "ifPhysAddress")
    interfaces = {
        column: {(1001 + n,): of_ports[n] for n in range(2)}
        for column, of_ports in zip(names, values, strict=True)
    }
    rows = {
        "local_port": {(n + 1,): local[n] for n in range(2)},
        "local_kind": {(1,): kind, (2,): kind},
    }
    port_ids: dict[tuple[str, ...], str] = {}
    for neighbours in (of(rows), None, TableRows(failure=Absent.TIMEOUT)):
        found = tables.SwitchTables({}, of(interfaces), neighbours=neighbours, port_ids=port_ids)
        ports_of = dict(tables.make_reading("leaf-07", found).streams[PORTS]).keys()
        found_ids = {entity.key[1]: entity.facts["lldp_port_id"] for _, entity in ports_of}
        assert found_ids == dict(zip(("Ethernet1", "Ethernet2"), announced, strict=True))
