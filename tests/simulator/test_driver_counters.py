"""Data tables of counters: every name in them has a meaning, and they are part of the package."""

from pathlib import Path

import pytest

from railscope_simulator import NodeSpec
from railscope_simulator.driver_counters import ETHTOOL, RDMA, CounterTable, port_values
from railscope_simulator.node_model import NodeModel

ROOT = Path(__file__).parents[2]
TABLES = {
    **{f"ethtool {driver}": table for driver, table in ETHTOOL.items()},
    **{f"rdma {driver}": table for driver, table in RDMA.hw_counters.items()},
    **{f"optional {driver}": table for driver, table in RDMA.optional.items()},
    "counters": RDMA.counters,
}


@pytest.fixture(scope="module", name="values")
def values_of_a_port():
    model = NodeModel(NodeSpec(node="n1"), 1_000_000_000)
    return port_values(next(iter(model.present_cables)))


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_a_table_shows_values_of_a_port_and_limits_counters_that_it_lists(
    table: CounterTable, values
):
    assert set(table.port_counters.values()) <= values.keys()
    assert not table.port_counters.keys() & table.constants.keys()
    assert {*table.maximum, *table.wraps, *table.only_with_pfc} <= table.zeros.keys()


def test_an_ethtool_value_belongs_to_a_listed_name():
    for table in ETHTOOL.values():
        listed = CounterTable(names=table.names).zeros.keys()
        assert table.port_counters.keys() <= listed


def test_placeholders_repeat_a_group_in_order():
    table = CounterTable(
        names=[["a"], ["rx_{lane}", "tx_{lane}"]],
        values={"rx_{lane}": "lane_{lane}_corrected_bits"},
    )
    assert list(table.zeros)[:5] == ["a", "rx_0", "tx_0", "rx_1", "tx_1"]
    assert table.port_counters["rx_3"] == "lane_3_corrected_bits"


def test_counters_saturate_or_wrap_as_their_table_declares():
    table = CounterTable(
        values={"narrow": "v", "wide": "v", "wrapping": "v"},
        maximum={"narrow": 255},
        wraps=["wrapping"],
    )
    shown = table.show({"v": (1 << 32) + 300})
    assert shown == {"narrow": 255, "wide": (1 << 32) + 300, "wrapping": 300}
