"""Nothing is observed before the first frame of a node, and of a GPU in it; nor facts that are too old."""

from __future__ import annotations

from collections import Counter

from core_queries import new_problems, tenant_energy
from hypothesis import given, settings, strategies as st
from reports import HOUR
from support.checkpoints import checkpoint_of, resume_from
from support.examples import fewer_examples
from support.finalizing import FinalizingCollector
from support.story import (
    DAY,
    DAY_SECONDS,
    SECOND,
    NodeReporter,
    accept,
    at,
    claim_started,
    core_in,
    gpus_of,
    known_of,
)

from railscope_collector.evidence.node_intervals import MAX_GPUS
from railscope_collector.state.collector_state import CollectorState


def observed(core: CollectorState, name: str = "GPU-0") -> list[tuple[float, float]]:
    """Seconds between which a GPU was observed."""
    found = known_of(core, name).evidence.sample_spans
    return [((s.first_ns - at(0)) / SECOND, (s.last_ns - at(0)) / SECOND) for s in found]


def past(node: str = "n1", gpu: str = "GPU-0", days: int = 2) -> list:
    """One envelope with samples of all of these days, received when they are over."""
    reporter = NodeReporter(node, booted_at=-5000)
    frames = reporter.frames(gpus_of(gpu), range(0, days * DAY_SECONDS + 1, 30))
    return [
        reporter.record(frames[i : i + 5000], sent=days * DAY_SECONDS)
        for i in range(0, len(frames), 5000)
    ]


def test_at_most_two_minutes_are_observed_before_the_first_frame_of_a_node(core: CollectorState):
    accept(core, past())
    assert observed(core) == [(2 * DAY_SECONDS - 120, 2 * DAY_SECONDS)]
    stays = known_of(core, "GPU-0").evidence.stays
    assert [stay.start_ns for stay in stays] == [at(2 * DAY_SECONDS - 120)]
    assert sum(tenant_energy(core).values()) <= 120 * 500, "nor was energy used before"


def test_a_new_gpu_of_a_known_node_was_not_there_before(core: CollectorState):
    node = NodeReporter()
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(0, 3601, 30)))
    both = node.frames(gpus_of("GPU-0", "GPU-1"), range(60, 3601, 30))
    accept(core, [node.record(both, sent=3600)])
    assert observed(core) == [(0, 3600)]
    assert observed(core, "GPU-1") == [(3480, 3600)]


def test_samples_that_are_too_old_at_their_receipt_observe_nothing(core: CollectorState):
    node = NodeReporter()
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(0, 301, 30)))
    away = node.frames(gpus_of("GPU-0"), range(330, 5 * DAY_SECONDS + 1, 30))
    accept(
        core,
        [node.record(away[i : i + 5000], sent=5 * DAY_SECONDS) for i in range(0, len(away), 5000)],
    )
    assert observed(core) == [(0, 300), (2 * DAY_SECONDS, 5 * DAY_SECONDS)]
    assert core.evidence.aged_rows == len(
        [f for f in away if f.timestamp.boot_ns < (2 * DAY_SECONDS + 5000) * SECOND]
    )
    assert core.counts.frames == 11 + len(away), "they are acknowledged all the same"


@settings(fewer_examples(15))
@given(st.randoms(), st.integers(1, 4))
def test_nothing_is_observed_before_first_contact(tmp_path_factory, random, nodes: int):
    envelopes = [
        envelope
        for number in range(nodes)
        for envelope in past(f"n{number}", random.choice(["GPU-0", f"GPU-{number}"]), 1)
    ]
    shuffled = envelopes + random.sample(envelopes, len(envelopes) // 2)
    random.shuffle(shuffled)
    core = core_in(tmp_path_factory.mktemp("schemas"))
    accept(core, shuffled)
    for gpu in core.evidence.gpus:
        assert all(first >= DAY_SECONDS - 120 for first, _ in observed(core, gpu))
    again = core_in(tmp_path_factory.mktemp("schemas"))
    accept(again, envelopes)
    assert {g: known_of(again, g).evidence for g in again.evidence.gpus} == {
        g: known_of(core, g).evidence for g in core.evidence.gpus
    }


def test_a_node_cannot_report_gpus_without_end(core: CollectorState):
    problems = new_problems(core)
    for number in range(MAX_GPUS + 20):
        node = NodeReporter(run=f"run-{number}")
        accept(core, node.envelopes_of(gpus_of(f"GPU-{number}"), [10 * number]))
    assert len(core.evidence.gpus) == MAX_GPUS
    assert core.evidence.excess_gpus == 20
    assert Counter(problem.kind for problem in problems)["too_many_gpus"] == 1


def test_a_restart_keeps_the_first_receipt_of_a_gpu(core: CollectorState, tmp_path):
    node = NodeReporter()
    accept(core, node.envelopes_of(gpus_of("GPU-0"), range(0, 301, 30)))
    again = core_in(tmp_path / "schemas")
    resume_from(again, checkpoint_of(core))
    assert again.evidence.receipts == core.evidence.receipts
    assert again.evidence.receipts["n1"].current_ns == at(300)


async def test_the_ledger_has_nothing_from_before_first_contact(site: FinalizingCollector):
    accept(site.core, past())
    await site.round(3 * DAY_SECONDS + 2 * HOUR, everything=True)
    days = sorted(day - DAY for _, day in site.stores.ledger.newest(DAY - 1, DAY + 9))
    assert days == [1, 2]
    first = site.stores.ledger.entries(at(DAY_SECONDS), at(2 * DAY_SECONDS), "GPU-0")
    assert min(entry.t0_ns for entry in first) == at(2 * DAY_SECONDS - 120)
    assert site.stores.store.contacts()["n1"]["GPU-0"].received_ns == at(2 * DAY_SECONDS)


async def test_no_claim_of_a_new_node_is_billed_for_the_time_before_it(site: FinalizingCollector):
    """A collector that never received from a node: samples and claims of two days, in one envelope."""
    events = {
        30: [
            claim_started("GPU-0", "named", 30, tenant="red"),
            claim_started("", "counted", 60, tenant="blue", count="1"),
        ]
    }
    node = NodeReporter(booted_at=-5000)
    frames = node.frames(gpus_of("GPU-0", "GPU-1"), range(0, 2 * DAY_SECONDS, 30), events=events)
    accept(site.core, [node.record(frames, sent=2 * DAY_SECONDS)])
    await site.round(3 * DAY_SECONDS + 2 * HOUR, everything=True)
    contact_ns = at(2 * DAY_SECONDS - 120)
    for gpu in ("GPU-0", "GPU-1"):
        entries = site.stores.ledger.entries(at(0), at(3 * DAY_SECONDS), gpu)
        before = [e for e in entries if e.t0_ns < contact_ns]
        assert {e.state.value for e in before} <= {"review"}
        assert all(e.t1_ns <= contact_ns for e in before)
        assert any(e.state.value in {"observed", "inferred"} for e in entries)


async def test_a_collector_without_state_reads_first_contact_from_the_database(
    site: FinalizingCollector,
):
    """An agent that was away for hours: another collector takes its spool."""
    node = NodeReporter()
    accept(site.core, node.envelopes_of(gpus_of("GPU-0"), range(0, 301, 30)))
    await site.round(400, everything=True)
    site.restart()
    away = node.frames(gpus_of("GPU-0"), range(330, 10 * HOUR + 1, 30))
    accept(site.core, [node.record(away, sent=10 * HOUR)])
    await site.round(10 * HOUR + 200, everything=True)
    await site.round(DAY_SECONDS + 2 * HOUR, everything=True)
    entries = site.stores.ledger.entries(at(0), at(DAY_SECONDS), "GPU-0")
    assert {(e.state.value, e.t0_ns, e.t1_ns) for e in entries} == {
        ("idle", at(0), at(10 * HOUR)),
        ("unknown", at(10 * HOUR), at(DAY_SECONDS)),
    }
