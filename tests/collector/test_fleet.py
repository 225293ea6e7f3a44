"""The fleet state and its roll-ups, against straightforward models of a few lines."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from fleet_updates import (
    GPUS,
    LAYOUT,
    NICS,
    SCHEMA,
    SECOND,
    WIDTH,
    WIRE,
    codes,
    make_row,
    row,
    update,
)
from hypothesis import given, settings, strategies as st

from railscope.catalog import agent, gpu, nic, rollups, textfile
from railscope.catalog.declare import Metric, MetricKind, Rollup
from railscope.catalog.entities import NIC, NIC_PRIORITY, NODE
from railscope.catalog.rollup import derived_name, scopes_of
from railscope.frame import Entity, Schema
from railscope.reading import Absent
from railscope.wire import (
    WireGroup,
    WireSchema,
    layout_hash,
    rails_of_entities,
    to_wire_schema,
)
from railscope_collector.fleet.fleet import Fleet
from railscope_collector.fleet.schemas import SchemaLayout, make_layout
from railscope_collector.fleet.sheets import BLOCK_ROWS
from railscope_collector.views.fresh_rows import find_fresh_rows
from railscope_collector.views.rollups import NO_TENANT, Rollups

tenant = st.sampled_from(["", "t1", "t2", "t3"])
tenants_of_rails = st.tuples(tenant, tenant, tenant) | tenant.map(lambda one: (one,) * 3)
"""Of the rails 0 and 1, and of the node as such."""
node = st.tuples(row, row, codes, tenants_of_rails, st.booleans())


def expected_cells(
    nodes: list[tuple[list[int], list[int], list[int], tuple[str, str, str], bool]],
) -> dict[tuple[str, tuple[str, ...]], float]:
    gathered: dict[tuple[str, str, Metric, tuple[str, ...]], list[float]] = defaultdict(list)
    for first, last, reasons, holders, fresh in nodes:
        for (metric, entity), before, after, code in zip(
            SCHEMA.columns, first, last, reasons, strict=True
        ):
            if not fresh or code:
                continue
            number = float(after)
            if metric.kind is MetricKind.COUNTER:
                step = after - before if after >= before else after
                number = float(np.float32(step * (1 / 2)))
            whole = entity.whole_key
            rail = next((e.facts.get("rail", "") for e in (*GPUS, *NICS) if e.key == whole), "")
            part = entity.key[len(whole) :]
            tenant = holders[int(rail) if rail else -1]
            gathered["cluster", "", metric, part].append(number)
            if rail and "rail" in scopes_of(metric):
                gathered["rail", rail, metric, part].append(number)
            if tenant and "tenant" in scopes_of(metric):
                gathered["tenant", tenant, metric, part].append(number)
    how = {
        Rollup.SUM: sum,
        Rollup.MAX: max,
        Rollup.MIN: min,
        Rollup.MEAN: lambda v: sum(v) / len(v),
        Rollup.COUNT: len,
    }
    return {
        (derived_name(metric, scope, rollup), (scope_name, *part) if scope_name else part): how[
            rollup
        ](numbers)
        * (1.0 if rollup is Rollup.COUNT else float(metric.scale))
        for (scope, scope_name, metric, part), numbers in gathered.items()
        for rollup in metric.rollups
    }


@settings(deadline=None)
@given(st.lists(node, min_size=1, max_size=6))
def test_rollups_are_what_a_straight_calculation_gives(nodes):
    fleet = Fleet()
    tenants = ["t1", "t2", "t3"]
    by_name = {}
    for number, (first, last, reasons, holders, fresh) in enumerate(nodes):
        name = f"n{number}"
        by_name[name] = [tenants.index(holder) if holder else NO_TENANT for holder in holders]
        fleet.apply(
            update(
                name,
                LAYOUT,
                first,
                last,
                reasons=reasons,
                timestamp_ns=(100 if fresh else 1) * SECOND,
            )
        )
    total = Rollups(lambda name, _: by_name[name], tenants)
    for block in fleet.blocks():
        reduced = find_fresh_rows(block, fleet.fresh_rows(block, 50 * SECOND, 100 * SECOND))
        if reduced:
            total.add(reduced)
    cells = {
        (cell.metric.name, cell.labels): cell.value
        for scope in ("cluster", "rail", "tenant")
        for cell in total.cells(scope)
        if cell is not None
    }
    expected = expected_cells(nodes)
    assert cells.keys() == expected.keys()
    for key, number in expected.items():
        assert math.isclose(cells[key], number, rel_tol=1e-6, abs_tol=1e-9), key


def test_the_costs_of_simulated_agents_are_in_no_rollup():
    """Of three agents, those of a capture and of a simulated node are counted, and the real one is the most expensive."""
    fleet, costs = Fleet(), (agent.AGENT_MEMORY, agent.AGENT_CPU_USE)
    replayed = (agent.REPLAY_MEMORY, *costs)
    for number, metrics in enumerate((replayed, costs, replayed)):
        columns = [(metric, Entity(NODE)) for metric in metrics]
        schema = Schema("agent", tuple(columns[i] for i in Schema.ordered(columns)))
        layout = make_layout(to_wire_schema(schema))
        values = [100 - number] * len(metrics)
        fleet.apply(update(f"n{number}", layout, values, values))
    total = Rollups(None, [])
    for block in fleet.blocks():
        total.add(find_fresh_rows(block, fleet.fresh_rows(block, 50 * SECOND, 100 * SECOND)))
    assert {cell.metric.name: cell.value for cell in total.cells("cluster") if cell} == {
        "railscope_cluster_max_agent_resident_memory_bytes": 99,
        "railscope_cluster_max_agent_cpu_use_ratio": 99e-6,
        "railscope_cluster_count_agent_replay_resident_memory": 2,
    }


def test_every_cell_is_declared():
    assert {derived.source.name for derived in rollups().values()} >= {"railscope_gpu_power_watts"}
    assert rollups()["railscope_rail_max_nic_receive_pfc_pause_ratio"].metric.about.labels == (
        "rail",
        "priority",
    )


news = st.tuples(
    st.sampled_from("abc"),
    st.integers(1, 9),
    row,
    row,
    codes,
    codes,
    st.sampled_from(["r", "r2"]),
    st.sampled_from(["b", "b", "b2"]),
    st.booleans(),
)
"""Of a node, some seconds later: two rows and their reasons, the run, the boot and the reader."""


def rows_of(fleet: Fleet) -> dict[str, list[list[float]]]:
    places = {name: node.rows["test"] for name, node in fleet.nodes.items()}
    return {
        name: [
            row.tolist()
            for row in (
                place.block.values_of(place.index),
                place.block.reasons_of(place.index),
                place.block.rates[place.index],
            )
        ]
        for name, place in places.items()
    }


@given(st.lists(news, min_size=1, max_size=12))
def test_it_is_all_one_when_what_came_is_read(batches):
    """Each batch alone on arrival, or many together at a read."""
    read_at_once, read_now_and_then = Fleet(), Fleet()
    for number in range(BLOCK_ROWS):  # of few rows none waits
        read_now_and_then.apply(update(f"other-{number}", LAYOUT, make_row(1, 1), make_row(1, 2)))
    second = 0
    for name, later, first, last, before, after, run, boot_id, is_read in batches:
        second += later
        one = update(
            name,
            LAYOUT,
            first,
            last,
            run=run,
            boot_id=boot_id,
            first_reasons=before,
            reasons=after,
            first_boot_ns=second * SECOND,
            last_boot_ns=(second + 1) * SECOND,
            timestamp_ns=second * SECOND,
        )
        second += 1
        assert read_at_once.apply(one)
        rows_of(read_at_once)
        assert read_now_and_then.apply(one)
        if is_read:
            rows_of(read_now_and_then)
    found = rows_of(read_now_and_then)
    for name, tables in rows_of(read_at_once).items():
        np.testing.assert_equal(found[name], tables)


def test_an_older_frame_does_not_replace_a_newer_one():
    fleet = Fleet()
    fleet.apply(update("n", LAYOUT, make_row(1, 1), make_row(7, 1)))
    assert not fleet.apply(update("n", LAYOUT, make_row(1, 1), make_row(7, 1))), "it is there"
    late = update(
        "n",
        LAYOUT,
        make_row(1, 1),
        make_row(3, 1),
        last_boot_ns=2 * SECOND,
        timestamp_ns=200 * SECOND,
    )
    assert not fleet.apply(late), "the boot clock knows better than the time of arrival"
    other = make_layout(to_wire_schema(Schema("test", SCHEMA.columns[:3])))
    assert not fleet.apply(update("n", other, [1] * 3, [1] * 3, last_boot_ns=2 * SECOND))
    place = fleet.nodes["n"].rows["test"]
    power = next(i for i, (metric, _) in enumerate(SCHEMA.columns) if metric is gpu.GPU_POWER)
    assert place.block.values_of(place.index)[power] == 7


def test_a_node_that_changes_its_build_leaves_its_row_to_others():
    other = make_layout(to_wire_schema(Schema("test", SCHEMA.columns[:3])))
    fleet = Fleet()
    for number in range(BLOCK_ROWS):
        fleet.apply(update(f"n{number}", LAYOUT, make_row(1, 1), make_row(1, 1)))
    fleet.apply(update("n0", other, [1] * 3, [1] * 3, last_boot_ns=4 * SECOND))
    fleet.apply(update("late", LAYOUT, make_row(1, 1), make_row(1, 1)))
    assert sum(block.layout is LAYOUT for block in fleet.blocks()) == 1
    assert fleet.nodes["n0"].rows["test"].block.layout is other


def test_nodes_share_a_layout_only_if_their_parts_are_the_same():
    def wire(interface: str, priority: str, rail: str) -> WireSchema:
        whole = Entity(NIC, (interface,), {"rail": rail})
        column = (nic.PFC_RECEIVED_TIME, whole.child(NIC_PRIORITY, priority))
        return to_wire_schema(Schema("nic", (column,), (whole,)))

    def layout(interface: str, priority: str, rail: str) -> bytes:
        schema = wire(interface, priority, rail)
        return layout_hash(schema, rails_of_entities(schema))

    one = layout("ens1", "3", "0")
    assert layout("ens2", "3", "0") == one, "the same NIC by another name"
    assert layout("ens1", "4", "0") != one
    assert layout("ens1", "3", "1") != one
    assert make_layout(wire("ens1", "3", "9" * 12)).rails == 0, "no such rail"


STALE = 30


def fresh_streams(fleet, now):
    """The streams that count, a number of seconds after the start."""
    return {
        block.layout.stream
        for block in fleet.blocks()
        if len(fleet.fresh_rows(block, (now - STALE) * SECOND, now * SECOND))
    }


def reported(fleet: Fleet, layout: SchemaLayout, *seconds: int, run: str = "run") -> None:
    for second in seconds:
        fleet.apply(
            update(
                "n1",
                layout,
                [0] * layout.columns,
                [0] * layout.columns,
                timestamp_ns=second * SECOND,
                last_boot_ns=second * SECOND,
                run=run,
            )
        )


def test_a_slow_stream_counts_between_its_frames_while_its_node_reports():
    fleet = Fleet()
    slow, fast = (replace(LAYOUT, stream=name) for name in ("settings", "gpu"))
    reported(fleet, slow, 100, 160)
    reported(fleet, fast, *range(100, 300, 10))
    assert fresh_streams(fleet, 215) == {"settings", "gpu"}
    assert fresh_streams(fleet, 280) == {"settings", "gpu"}, "not before two of its periods"
    assert fresh_streams(fleet, 281) == {"gpu"}


def test_a_slow_stream_of_a_stale_node_does_not_count():
    fleet = Fleet()
    slow, fast = (replace(LAYOUT, stream=name) for name in ("settings", "gpu"))
    reported(fleet, slow, 100, 160)
    reported(fleet, fast, 160, 165)
    assert fresh_streams(fleet, 190) == {"settings", "gpu"}
    assert fresh_streams(fleet, 196) == set()


def test_reads_before_a_restart_or_a_long_pause_do_not_count_as_a_period():
    fleet = Fleet()
    slow, fast = (replace(LAYOUT, stream=name) for name in ("settings", "gpu"))
    reported(fleet, slow, 100, 160)
    reported(fleet, slow, 4000, run="next")
    reported(fleet, fast, 4000, 4500)
    assert fresh_streams(fleet, 4501) == {"gpu"}


IMPOSSIBLE = 100_000_001
"""Milliwatts above the limit of a power."""


@pytest.mark.parametrize("power", [IMPOSSIBLE, -1, 2**32 - 1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("reason", [0, Absent.DENIED.value])
def test_a_gauge_of_an_impossible_value_is_absent_with_an_error(power: int, reason: int):
    """Agents before 0.4 sent them."""
    fleet, metrics = Fleet(), [metric for metric, _ in SCHEMA.columns]
    column = metrics.index(gpu.GPU_POWER)
    codes = [0] * WIDTH
    codes[column] = reason
    wrong = make_row(7, 2**62)
    wrong[column] = power
    other = make_row(9, 2**32 - 1)
    fleet.apply(update("n1", LAYOUT, wrong, wrong, reasons=codes))
    fleet.apply(update("n2", LAYOUT, other, other))
    place, right = (fleet.nodes[name].rows["test"] for name in ("n1", "n2"))
    wrong[column] = 0
    assert place.block.values_of(place.index).tolist() == wrong
    codes[column] = reason or Absent.ERROR.value
    assert place.block.reasons_of(place.index).tolist() == codes
    assert right.block.values_of(right.index).tolist() == other
    assert not right.block.reasons_of(right.index).any()


def test_a_gauge_of_another_scale_or_without_limits_is_left_as_it_is():
    """A catalog with another scale has other limits; textfiles have none."""
    groups = (
        WireGroup(gpu.GPU_POWER.name, (1, 10**6), (0,)),
        WireGroup(textfile.VALUE_MANTISSA.name, (1, 1), (0,)),
    )
    layout, fleet = make_layout(WireSchema("test", groups, WIRE.entities)), Fleet()
    numbers = [IMPOSSIBLE, 2**63 - 1]
    fleet.apply(update("n", layout, numbers, numbers))
    place = fleet.nodes["n"].rows["test"]
    assert place.block.values_of(place.index).tolist() == numbers
    assert not place.block.reasons_of(place.index).any()


UNKNOWN = WireSchema(
    "test",
    (WireGroup("railscope_test_unknown", (1, 1), (0,) * 21), *WIRE.groups),
    WIRE.entities,
)
"""Columns of a metric that no view reads, before those of views."""
any_value = st.sampled_from([0, 0, 0, 1, -1, 2**63 - 1, -(2**63)]) | st.integers(
    -(2**63), 2**63 - 1
)


@given(st.lists(st.lists(any_value, min_size=21, max_size=21), min_size=1, max_size=8))
def test_columns_that_no_view_reads_keep_their_values(rows: list[list[int]]):
    layout, fleet = make_layout(UNKNOWN), Fleet()
    assert set(range(21)) <= set(layout.packed_columns.tolist())
    for number, counts in enumerate(rows):
        name, numbers = f"n{number % 3}", [*counts, *make_row(number, number)]
        at_ns = (number + 1) * SECOND
        fleet.apply(update(name, layout, numbers, numbers, first_boot_ns=at_ns, last_boot_ns=at_ns))
        place = fleet.nodes[name].rows["test"]
        assert place.block.values_of(place.index).tolist() == numbers
        viewed = place.block.values_at(np.array([place.index]), layout.viewed)
        assert viewed.tolist() == [[numbers[column] for column in layout.viewed]]


def test_another_frame_of_a_node_does_not_move_what_is_kept_of_it():
    """New objects among the short-lived ones of envelopes divide the free memory of thousands of nodes."""
    layout, fleet, addresses = make_layout(UNKNOWN), Fleet(), set()
    for at in range(8, 28):
        for node in ("n1", "n2"):
            numbers = [*[2**62 + at] * (21 - at % 8), *[0] * (at % 8), *make_row(at, at)]
            times = {"first_boot_ns": at * SECOND, "last_boot_ns": at * SECOND}
            fleet.apply(update(node, layout, numbers, numbers, **times))
        place = fleet.nodes["n1"].rows["test"]
        assert place.block.values_of(place.index).tolist()[:21] == numbers[:21]
        packed = place.block._packed_rows[place.index]  # noqa: SLF001 - where it is kept
        addresses.add(np.frombuffer(packed, np.uint8).ctypes.data)
    assert len(addresses) == 1
