"""Notifications of gNMI of each vendor: their paths, kinds of values and bounds."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from support import gnmi_captures as captures

from railscope.frame import NodeTimestamp
from railscope.reading import Absent
from railscope_collector.switches import (
    gnmi_messages,
    gnmi_updates,
    openconfig_reader,
    openconfig_tables as tables,
    switch_frames,
)
from railscope_collector.switches.switch_reading import SwitchReadError

QMON = "junos/system/linecard/qmon-sw[name]/egress[queue-number]/"
LANE = "interfaces/interface[name]/optics/lanediags/lane[lane_number]/"
NXOS_QUEUE = (
    "System/ipqos-items/queuing-items/policy-items/out-items/intf-items/If-list[name]/queCmap-items/"
    "QueuingStats-list[statType][cmapName]/"
)
NXOS_PAUSES = "System/intf-items/phys-items/PhysIf-list[id]/dbgDot3Stats-items/"
TEMPERATURE = "components/component[name]/state/temperature/"
POWER = "components/component[name]/power-supply/state/"
STATE = "interfaces/interface[name]/state/"

COUNTS: list[tuple[str, str, tuple[str, ...], int]] = [
    ("ciena-prefixed-names-no-key", "interfaces/interface/state/counters/in-octets", (), 95_890_972_327_359),
    ("eos-counters-with-prefix", f"{STATE}counters/in-octets", ("Ethernet35",), 0),
    ("single-update-without-prefix", "system/memory/state/used", (), 3_479_527_424),
    ("single-update-without-prefix", "system/cpus/cpu[index]/state/idle/avg", ("ALL",), 89),
    ("srl-origin-in-every-path", "interface[name]/ethernet", ("ethernet-1/1",), 3),
    ("junos-qmon-nameless-elements", f"{QMON}packets", ("xe-0/0/0:0", "0"), 97_812_973),
    ("junos-qmon-nameless-elements", f"{QMON}peak-buffer-occupancy-bytes", ("xe-0/0/0:0", "2"), 208),
    ("junos-optics-atomic-float-bytes", f"{LANE}media_fec_uncorr_blocks", ("et-0/0/0", "1"), 0),
    ("nxos-device-yang-derived", f"{NXOS_QUEUE}pfcRxPpp", ("eth1/1", "unicast", "c-out-8q-q3"), 5_000_000_000),
    ("nxos-device-yang-derived", f"{NXOS_QUEUE}pfcwdShutdownCount", ("eth1/1", "unicast", "c-out-8q-q3"), 2),
    ("nxos-device-yang-derived", f"{NXOS_QUEUE}randEcnMarkedPackets", ("eth1/1", "unicast", "c-out-8q-q3"), 88_000),
    ("nxos-device-yang-derived", f"{NXOS_PAUSES}outPauseFrames", ("eth1/1",), 0),
]  # fmt: skip
DECIMALS: list[tuple[str, str, tuple[str, ...], str]] = [
    ("platform-module-prefix-decimal", f"{TEMPERATURE}instant", ("CM-1",), "20.4"),
    ("json-ietf-base64-float-and-text-decimal", f"{POWER}capacity", ("PowerSupply1/A",), "715"),
    ("json-ietf-base64-float-and-text-decimal", f"{TEMPERATURE}instant", ("HotSpotTempSensor1",), "58"),
    ("junos-optics-atomic-float-bytes", f"{LANE}lane_laser_output_power_dbm", ("et-0/0/0", "0"), "2.32"),
    ("junos-optics-atomic-float-bytes", f"{LANE}lane_laser_receiver_power_dbm", ("et-0/0/0", "0"), "-0.07"),
    ("junos-optics-atomic-float-bytes", f"{LANE}lane_laser_bias_current", ("et-0/0/0", "1"), "90"),
]  # fmt: skip
TEXTS: list[tuple[str, str, tuple[str, ...], str]] = [
    ("xr-json-ietf-one-object", f"{STATE}description", ("FourHundredGigE0/2/0/3",), "REDACTED"),
    ("huawei-empty-update-and-delete", "ifm/interfaces/interface[name]/dynamic/oper-status", ("Eth-Trunk5.1234",), "down"),
    ("platform-module-prefix-decimal", "components/component[name]/name", ("LM-1",), "LM-1"),
]  # fmt: skip


def leaf_of(name: str, path: str, keys: tuple[str, ...]) -> gnmi_updates.Leaf:
    leaves = captures.leaves_of(captures.capture_messages(name), gnmi_updates.build_tree([path]))
    leaf = leaves.get(path, *keys)
    assert leaf is not None, list(leaves.names([path]))
    return leaf


@pytest.mark.parametrize(("name", "path", "keys", "value"), COUNTS)
def test_counts_of_captures(name: str, path: str, keys: tuple[str, ...], value: int):
    assert tables.as_count(leaf_of(name, path, keys)) == value


@pytest.mark.parametrize(("name", "path", "keys", "value"), DECIMALS)
def test_decimals_of_captures(name: str, path: str, keys: tuple[str, ...], value: str):
    found = tables.as_decimal(leaf_of(name, path, keys))
    assert isinstance(found, Decimal)
    assert abs(found - Decimal(value)) < Decimal("0.001")


@pytest.mark.parametrize(("name", "path", "keys", "value"), TEXTS)
def test_texts_of_captures(name: str, path: str, keys: tuple[str, ...], value: str):
    assert tables.as_text(leaf_of(name, path, keys)) == value


def test_address_as_name_of_an_element_keeps_its_first_part():
    path = "Sysdb/bridging/igmpsnooping/forwarding/status/vlanStatus/900/ethGroup/01:00:5e:1e:1e:1e/intf/Ethernet1"
    assert leaf_of("eos-native-mac-as-path-name", path, ()) is True


# Kinds of values ---------------------------------------------------------------------------------

OCTETS = f"{STATE}counters/in-octets"


def elements(*names: str, **keys: Mapping[str, str]) -> dict[str, Any]:
    return {
        "elem": [
            {"name": name, "key": keys[name]} if name in keys else {"name": name} for name in names
        ]
    }


def octets_of(*, port: str = "e1", **value: Any) -> dict[str, Any]:
    path = elements(
        "interfaces", "interface", "state", "counters", "in-octets", interface={"name": port}
    )
    return {"path": path, "val": value}  # fmt: skip


def take(*notifications: Mapping[str, Any]) -> gnmi_updates.Leaves:
    messages = [captures.encode_response({"update": each}) for each in notifications]
    return captures.leaves_of(messages, tables.TREE)


@pytest.mark.parametrize(
    ("value", "count", "decimal"),
    [
        ({"uintVal": str((1 << 64) - 1)}, (1 << 64) - 1, Decimal((1 << 64) - 1)),
        ({"intVal": "-3"}, Absent.ERROR, Decimal(-3)),
        (
            {"stringVal": "18446744073709551000"},
            18_446_744_073_709_551_000,
            Decimal(18_446_744_073_709_551_000),
        ),
        ({"asciiVal": "7"}, 7, Decimal(7)),
        ({"stringVal": ""}, Absent.UNSUPPORTED, Absent.UNSUPPORTED),
        ({"stringVal": "35.000000"}, Absent.ERROR, Decimal(35)),
        ({"stringVal": "−2.5 dBm"}, Absent.ERROR, Absent.ERROR),  # noqa: RUF001 - a typographic minus
        ({"stringVal": "abcé"}, Absent.ERROR, Absent.ERROR),
        ({"boolVal": True}, Absent.ERROR, Absent.ERROR),
        ({"bytesVal": "QBR64Q=="}, Absent.ERROR, Decimal("2.3199999332427979")),
        ({"bytesVal": "QAI="}, Absent.ERROR, Absent.ERROR),
        ({"bytesVal": ""}, Absent.ERROR, Absent.ERROR),
        ({"floatVal": 64.0}, 64, Decimal(64)),
        ({"doubleVal": -3.25}, Absent.ERROR, Decimal("-3.25")),
        ({"doubleVal": "NaN"}, Absent.ERROR, Absent.ERROR),
        ({"doubleVal": "Infinity"}, Absent.ERROR, Absent.ERROR),
        ({"doubleVal": 1e300}, Absent.ERROR, Absent.ERROR),
        ({"decimalVal": {"digits": "-80", "precision": 2}}, Absent.ERROR, Decimal("-0.80")),
        ({"decimalVal": {"digits": "500", "precision": 2}}, 5, Decimal(5)),
        ({"decimalVal": {"digits": "1", "precision": 4_000_000_000}}, Absent.ERROR, Absent.ERROR),
        ({"leaflistVal": {"element": [{"uintVal": "1"}]}}, Absent.ERROR, Absent.ERROR),
        ({"anyVal": {}}, Absent.ERROR, Absent.ERROR),
        ({"protoBytes": "AAAA"}, Absent.ERROR, Absent.ERROR),
        ({}, Absent.ERROR, Absent.ERROR),
        ({"jsonVal": "Nw=="}, 7, Decimal(7)),
        ({"jsonIetfVal": "Ijci"}, 7, Decimal(7)),
        ({"jsonIetfVal": "MS41"}, Absent.ERROR, Decimal("1.5")),
        ({"jsonIetfVal": "bnVsbA=="}, Absent.ERROR, Absent.ERROR),
    ],
)
def test_each_kind_of_value_is_a_number_or_has_a_reason(
    value: Mapping[str, Any], count: int | Absent, decimal: Decimal | Absent
):
    leaf = take({"update": [octets_of(**value)]}).get(OCTETS, "e1")
    assert leaf is not None
    assert tables.as_count(leaf) == count
    found = tables.as_decimal(leaf)
    if isinstance(decimal, Absent) or isinstance(found, Absent):
        assert found is decimal
    else:
        assert abs(found - decimal) < Decimal("0.000001")


def test_lists_of_json_have_their_keys_inside():
    content = {"openconfig-interfaces:interface": [
        {"name": "e1", "state": {"counters": {"in-octets": "5"}}},
        {"oc-if:name": "e2", "state": {"counters": {"in-octets": 6}}},
        {"state": {"counters": {"in-octets": 7}}},
        "no object",
    ]}  # fmt: skip
    value = {"jsonIetfVal": _base64(json.dumps(content))}
    leaves = take({"update": [{"path": elements("interfaces"), "val": value}]})
    assert [leaves.get(OCTETS, name) for name in ("e1", "e2")] == ["5", 6]
    assert leaves.names([OCTETS]) == ["e1", "e2"]


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# Bounds ------------------------------------------------------------------------------------------


def test_values_beyond_the_limit_are_an_error():
    updates = [octets_of(port=f"e{n}", uintVal="5") for n in range(1000)]
    messages = [captures.encode_response({"update": {"update": updates}})]
    leaves = gnmi_updates.Leaves(tables.TREE, max_leaves=999)
    with pytest.raises(SwitchReadError, match="too many values in a poll") as failed:
        openconfig_reader.apply_messages(messages, leaves)
    assert failed.value.reason == "limit"


def test_repeated_updates_end():
    notification = {"update": [octets_of(port="e1", uintVal="5")] * 100}
    messages = [captures.encode_response({"update": notification})] * 100
    leaves = gnmi_updates.Leaves(tables.TREE, max_steps=10_000)
    with pytest.raises(SwitchReadError, match="too much data in a poll") as failed:
        openconfig_reader.apply_messages(messages, leaves)
    assert failed.value.reason == "limit"


def test_invalid_json_is_an_error():
    with pytest.raises(SwitchReadError, match="invalid JSON"):
        take({"update": [octets_of(jsonVal="ew==")]})


def test_long_texts_and_keys_are_cut():
    leaves = take({"update": [octets_of(port="e" * 10_000, stringVal="5" * 10_000)]})
    (name,) = leaves.names([OCTETS])
    assert len(name) <= 255
    leaf = leaves.get(OCTETS, name)
    assert isinstance(leaf, str)
    assert len(leaf) <= 256
    assert tables.as_count(leaf) is Absent.ERROR


SCALARS = st.one_of(
    st.builds(lambda value: {"string_val": value}, st.text(max_size=30)),
    st.builds(lambda value: {"int_val": value}, st.integers(-(1 << 63), (1 << 63) - 1)),
    st.builds(lambda value: {"uint_val": value}, st.integers(0, (1 << 64) - 1)),
    st.builds(lambda value: {"double_val": value}, st.floats()),
    st.builds(lambda value: {"bytes_val": value}, st.binary(max_size=9)),
    st.builds(
        lambda digits, precision: {"decimal_val": {"digits": digits, "precision": precision}},
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.integers(0, (1 << 32) - 1),
    ),
    st.builds(lambda value: {"json_ietf_val": value}, st.sampled_from([b"1", b'"x"', b"{", b"[1]", b"1e999", b'{"state": 1}'])),
)  # fmt: skip
KEYS = st.dictionaries(
    st.sampled_from(["name", "index", "interface-id", "id", "queue-type"]),
    st.sampled_from(["e1", "1", "*", "", "\n", "UNICAST"]),
)
LEAVES = sorted(tables.TREE.leaves())
NAMES = st.sampled_from(sorted({part.partition("[")[0] for leaf in LEAVES for part in leaf.split("/")} | {""}))  # fmt: skip


@st.composite
def drawn_paths(draw: st.DrawFn) -> dict[str, Any]:
    """A path of the table with drawn keys, which may end early or in another name."""
    leaf = draw(st.sampled_from(LEAVES))
    names = [part.partition("[")[0] for part in leaf.split("/")]
    if draw(st.booleans()):
        names = [*names[: draw(st.integers(0, len(names)))], draw(NAMES)]
    return {"elem": [{"name": name, "key": draw(KEYS)} for name in names]}


UPDATES = st.builds(lambda path, value: {"path": path, "val": value}, drawn_paths(), SCALARS)
NOTIFICATIONS = st.fixed_dictionaries(
    {"update": st.lists(UPDATES, max_size=4)},
    optional={"delete": st.lists(drawn_paths(), max_size=2), "prefix": drawn_paths(), "atomic": st.booleans(), "timestamp": st.integers(-(1 << 63), (1 << 63) - 1)},
)  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(notifications=st.lists(NOTIFICATIONS, max_size=4))
def test_any_notifications_are_readings_or_an_error_of_the_switch(
    notifications: list[dict[str, Any]],
):
    messages = [gnmi_messages.encode("SubscribeResponse", update=each) for each in notifications]
    groups = {group.name for group in tables.GROUPS}
    with suppress(SwitchReadError):
        leaves = captures.leaves_of(messages, tables.TREE)
        answers = tables.OpenConfigAnswers(leaves, groups)
        reading = tables.make_reading("leaf-07", answers, tables.SwitchFacts())
        stamp = NodeTimestamp(1, 1, 0)
        frames = switch_frames.SwitchFrames("leaf-07", "run", has_narrow_counters=False)
        switch_frames.pack_frames(frames.frames(reading, stamp), stamp, with_schemas=True)
