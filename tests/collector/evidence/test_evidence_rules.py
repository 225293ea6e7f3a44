"""From frames to evidence, rule by rule: gaps, boots, clocks, counters, the order of arrival."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from core_queries import ALICE, compute_states, new_problems, tenant_energy
from structlog.testing import capture_logs
from support.checkpoints import checkpoint_of, facts_of, resume_from
from support.metered import tile
from support.story import (
    SECOND,
    NodeReporter,
    accept,
    account_at,
    at,
    claim_ended,
    claim_started,
    core_in,
    counting,
    gpus_of,
    host,
    known_of,
    ports_of,
    seconds_of,
)

from railscope_collector.account.account_sums import AmountKey, count_amounts
from railscope_collector.fleet.schema_columns import sku_of
from railscope_collector.metering.amount_shares import AmountAttribution
from railscope_collector.metering.counter_increments import CountedQuantity
from railscope_collector.metering.evidence import NodeEvidence
from railscope_collector.metering.tiling import SlotState
from railscope_collector.state.collector_state import CollectorState


async def test_a_node_that_never_comes_back_keeps_its_claim_without_node_evidence(
    core: CollectorState,
):
    events = {50: [claim_started("GPU-0", "job-1", 40, **ALICE)]}
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    day = [
        e
        for e in tile(known_of(core, "GPU-0").evidence, at(0), at(86_400))
        if e.tiling == "compute"
    ]
    assert [(e.state, e.node_evidence, (e.t0_ns - at(0)) // SECOND) for e in day] == [
        (SlotState.IDLE, None, 0),
        (SlotState.OBSERVED, None, 40),
        (SlotState.INFERRED, NodeEvidence.NONE, 100),
    ]
    account = await account_at(core, 86_400)
    assert seconds_of(account)["inferred", "alice"] == 86_300


def test_other_streams_and_the_scheduler_are_evidence_for_a_gpu_without_samples(
    core: CollectorState,
):
    node = NodeReporter()
    seen = {40: [claim_started("GPU-0", "job-1", 40, level="node_plugin", **ALICE)]}
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(0, 61, 10), events=seen))
    accept(core, node.envelopes_of(host(), range(0, 201, 10)))
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(200, 261, 10)))
    silent = [
        e for e in tile(known_of(core, "GPU-0").evidence, at(60), at(200)) if e.tiling == "compute"
    ]
    assert [(e.state, e.node_evidence, e.gap_ns) for e in silent] == [
        (SlotState.INFERRED, NodeEvidence.NODE_READY, 140 * SECOND)
    ]
    accept(
        core,
        node.envelopes_of(host(), [300], events={300: [claim_started("GPU-0", "j", 60, **ALICE)]}),
    )
    silent = [
        e for e in tile(known_of(core, "GPU-0").evidence, at(60), at(200)) if e.tiling == "compute"
    ]
    assert {(e.claim, e.node_evidence) for e in silent} == {("j", NodeEvidence.SCHEDULER)}


def test_a_reboot_is_a_gap_and_counts_from_zero(core: CollectorState):
    events = {0: [claim_started("GPU-0", "job-1", 0, **ALICE)]}
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 91, 10), events=events))
    after = NodeReporter(boot_id="boot-2", run="run-2", booted_at=100)
    rising = after.envelopes_of(
        gpus_of("GPU-0"),
        range(105, 196, 10),
        values=lambda s, n: counting(s - 10_100, n),
        events={115: events[0]},
    )
    accept(core, rising)
    assert compute_states(core, 195) == [
        ("observed", "alice", 0, 90),
        ("inferred", "alice", 90, 105),
        ("observed", "alice", 105, 195),
    ]
    assert set(tenant_energy(core)) == {("attributed", "alice"), ("unattributed", "")}


def test_a_claim_that_a_node_does_not_report_after_a_reboot_ended_with_it(core: CollectorState):
    events = {0: [claim_started("GPU-0", "job-1", 0, **ALICE)]}
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 91, 10), events=events))
    for boot, first in (("boot-2", 105), ("boot-3", 305)):
        after = NodeReporter(boot_id=boot, run=boot, booted_at=first - 5)
        accept(core, after.envelopes_of(gpus_of("GPU-0"), range(first, first + 91, 10)))
    assert compute_states(core, 195) == [
        ("observed", "alice", 0, 90),
        ("inferred", "alice", 90, 105),
        ("idle", "", 105, 195),
    ]
    reported = after.envelopes_of(host(), [400], events={400: events[0]})
    accept(core, reported)
    assert compute_states(core, 195)[-1] == ("observed", "alice", 105, 195), "it was reported late"


def test_the_rest_of_the_boot_before_is_as_old_as_by_the_wall_clock(core: CollectorState):
    before = NodeReporter()
    frames = before.frames(gpus_of("GPU-0"), range(0, 51, 10))
    after = NodeReporter(boot_id="boot-2", run="run-2", booted_at=80)
    late, envelope = before.record(frames)
    clocks = after.record(after.frames(host(), [100]))[0].sent
    sent_later = msgspec.structs.replace(late, received_wall_ns=at(100), sent=clocks)
    accept(
        core, [(sent_later, envelope), *after.envelopes_of(gpus_of("GPU-0"), range(100, 131, 10))]
    )
    assert compute_states(core, 130) == [
        ("idle", "", 0, 50),
        ("unknown", "", 50, 100),
        ("idle", "", 100, 130),
    ]


def test_neither_the_order_of_arrival_nor_a_gap_moves_a_boundary(core: CollectorState):
    """A node that was disconnected: its backlog arrives last."""
    node = NodeReporter()
    events = {
        30: [claim_started("GPU-0", "a", 25, **ALICE)],
        3000: [claim_ended("GPU-0", "a", 2950)],
    }
    frames = node.frames(gpus_of("GPU-0"), range(0, 3061, 10), events=events)
    newest = node.record(frames[-10:])
    backlog = [node.record(frames[i : i + 50], sent=3100 + i) for i in range(0, len(frames), 50)]
    accept(core, [node.record(frames[:1]), newest, *reversed(backlog)])
    assert compute_states(core, 3060) == [
        ("idle", "", 0, 25),
        ("observed", "alice", 25, 2950),
        ("idle", "", 2950, 3060),
    ]


def test_a_counter_that_starts_over_loses_nothing_and_is_never_negative(core: CollectorState):
    node = NodeReporter(booted_at=-6000)
    events = {0: [claim_started("GPU-0", "job-1", 0, **ALICE)]}
    accept(
        core,
        node.envelopes_of(
            gpus_of("GPU-0"), range(0, 121, 30), events=events, values=lambda s, _: [0, 0, 1000 + s]
        ),
    )
    accept(
        core,
        node.envelopes_of(
            gpus_of("GPU-0"), range(150, 241, 30), values=lambda s, _: [0, 0, s - 140]
        ),
    )
    column = next(i for i, (m, _) in enumerate(gpus_of("GPU-0").columns) if "energy" in m.name)
    assert column in {0, 1, 2}
    known = known_of(core, "GPU-0")
    counted = known.counted[CountedQuantity.ENERGY if column == 2 else CountedQuantity.USED]
    assert counted.amounts.min() >= 0
    assert [(r.last_ns - at(0)) // SECOND for r in counted.resets()] == [120]
    assert counted.amounts.sum() == 120 + 100


@pytest.mark.parametrize("jump", [1 << 40, 1 << 62])
def test_a_counter_that_jumps_and_returns_is_not_counted(core: CollectorState, jump: int):
    node = NodeReporter(booted_at=-6000)
    column = next(i for i, (m, _) in enumerate(gpus_of("GPU-0").columns) if "energy" in m.name)
    energy = 500 * 10**9

    def values(second: int, columns: int) -> list[int]:
        value = energy + 300_000 * second + (jump if second == 60 else 0)
        return [value if each == column else 0 for each in range(columns)]

    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(0, 121, 30), values=values))
    counted = known_of(core, "GPU-0").counted[CountedQuantity.ENERGY]
    assert counted.amounts.tolist() == [300_000 * 30] * 2, "unknown beside the jump"


def test_a_wall_clock_that_steps_moves_no_sample_and_quarantines_what_it_taints(
    core: CollectorState,
):
    problems = new_problems(core)
    node = NodeReporter()
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(0, 51, 10)))
    node.skew = 30
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(60, 111, 10)))
    flagged = known_of(core, "GPU-0").evidence.sample_spans
    assert {s.skew_ns > 2 * SECOND for s in flagged} == {False, True}
    assert compute_states(core, 110) == [("idle", "", 0, 110)], "the boot clock counts"
    assert not problems
    node.skew = 3600
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(120, 171, 10)))
    assert compute_states(core, 170) == [("idle", "", 0, 110), ("unknown", "", 110, 170)]
    assert [(t.kind, t.node) for t in problems] == [("quarantine", "n1")]


def test_traffic_of_a_rail_is_that_of_its_gpu(core: CollectorState):
    node = NodeReporter(booted_at=-6000)
    events = {0: [claim_started("GPU-1", "a", 0, **ALICE)]}
    accept(core, node.envelopes_of(gpus_of("GPU-0", "GPU-1"), range(0, 121, 10), events=events))
    accept(
        core,
        node.envelopes_of(
            ports_of(2), range(0, 121, 10), values=lambda s, _: [s, 10 * s, 100 * s, 1000 * s]
        ),
    )
    known = known_of(core, "GPU-1")
    totals = {
        whose: amount
        for found in count_amounts(known, at(-1), at(1000)).values()
        for whose, amount in found.items()
    }
    columns = [(m.name, e.key[0]) for m, e in ports_of(2).columns]
    rate = {name: 10**place for place, name in enumerate(columns)}
    for measure, text in (
        (CountedQuantity.RECEIVED, "receive"),
        (CountedQuantity.TRANSMITTED, "transmit"),
    ):
        expected = 120 * rate[f"railscope_rdma_{text}_bytes_total", "mlx5_1"]
        assert totals[AmountKey(measure, AmountAttribution.ATTRIBUTED, "alice")] == expected
    assert [sku for _, sku in known.skus] == [sku_of("NVIDIA H100 80GB HBM3")] == ["h100-80gb-hbm3"]


def test_what_a_restart_reads_again_is_as_it_was(core: CollectorState, tmp_path: Path):
    node = NodeReporter()
    events = {10: [claim_started("GPU-0", "a", 0, **ALICE)]}
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    again = core_in(tmp_path)
    resume_from(again, checkpoint_of(core))
    assert facts_of(again) == facts_of(core)


def test_problems_are_logged(core: CollectorState):
    with capture_logs() as logs:
        node = NodeReporter(skew=7200)
        accept(core, node.envelopes_of(gpus_of("GPU-0"), range(0, 101, 10)))
    assert [
        (line["kind"], line["node"]) for line in logs if line["event"] == "evidence_problem_found"
    ] == [("quarantine", "n1")]
