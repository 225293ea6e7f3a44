"""Properties of the evidence: independent of order and batches, and the account equals the engine's."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, strategies as st
from msgspec.structs import replace
from stories import fleet_histories
from support.checkpoints import checkpoint_of, resume_from
from support.examples import fewer_examples
from support.metered import tile
from support.story import SECOND, accept, at, known_of, no_turns, temporary_core

from railscope_collector.account.account_sums import sum_entries
from railscope_collector.account.live_account import LiveAccount
from railscope_collector.evidence.claim_events import ReportedClaim, is_gpu
from railscope_collector.evidence.claim_placement import ClaimPlacer
from railscope_collector.evidence.gpu_evidence import build_evidence
from railscope_collector.ledger.day_tiling import evidence_root
from railscope_collector.state.collector_state import CollectorState

few = fewer_examples(50)
since_the_newest = st.sampled_from([-15, -8, -3, -1, 0, 1, 5, 40, 400, 8000])
"""Seconds from the arrival of the newest frame to the refresh."""
sizes = st.lists(st.integers(1, 30), min_size=1, max_size=4)


def same(one: CollectorState, other: CollectorState, files) -> None:
    """True if two cores have the same facts of every GPU."""
    assert one.evidence.gpus.keys() == other.evidence.gpus.keys()
    for gpu in one.evidence.gpus:
        first, second = known_of(one, gpu, files), known_of(other, gpu, files)
        assert first.evidence == second.evidence
        assert first.counted.keys() == second.counted.keys()
        for measure, counted in first.counted.items():
            again = second.counted[measure]
            assert np.array_equal(counted.ends_ns, again.ends_ns)
            assert np.array_equal(counted.amounts, again.amounts)


def reports(reported: list[ReportedClaim]) -> list[ReportedClaim]:
    """Claims in order, without the times of their reports, which depend on their receipt."""
    return sorted(
        {replace(one, reported_ns=0, trusted_from_ns=0, received_ns=0) for one in reported}
    )


@few
@given(fleet_histories(), sizes, sizes, st.randoms(use_true_random=False))
def test_neither_order_nor_repetition_nor_batches_mean_anything(story, these, those, random):
    core, other = temporary_core(), temporary_core()
    accept(core, story.envelopes(these))
    # Delivery in the order of sending; the receipt decides which node reported first.
    shuffled = [*story.envelopes(those), *story.envelopes(these)]
    random.shuffle(shuffled)
    accept(other, shuffled)
    one, two = (c.evidence for c in (core, other))
    if not any(len({p.node for p in m.presences.values()}) > 1 for m in one.gpus.values()):
        same(core, other, story.files)
    for gpu in one.gpus:
        assert reports(one.gpus[gpu].claims) == reports(two.gpus[gpu].claims)


@few
@given(fleet_histories(), sizes, st.lists(since_the_newest, min_size=1, max_size=8), st.data())
async def test_the_live_account_is_what_the_engine_makes_of_the_same_evidence(
    story, these, offsets, data
):
    """Read before and after the newest sample, which may be newer than the time of the read."""
    core = temporary_core()
    live = LiveAccount(core.evidence, lambda: story.files)
    envelopes = story.envelopes(these)
    cuts = sorted(data.draw(st.integers(0, len(envelopes))) for _ in offsets)
    begin, now_ns, newest_ns = 0, at(0), at(0)
    for offset, end in zip(offsets, cuts, strict=True):
        accept(core, envelopes[begin:end])
        newest_ns = max([newest_ns, *(r.received_wall_ns for r, _ in envelopes[begin:end])])
        begin, now_ns = end, max(now_ns, newest_ns + offset * SECOND)
        account = await live.refresh(now_ns, no_turns)
        assert account.balances
        expected: dict = {}
        for gpu in core.evidence.gpus:
            evidence, _ = build_evidence(core.evidence.facts(gpu), story.files)
            since = min((stay.start_ns for stay in evidence.stays), default=now_ns)
            if since < now_ns:
                for key, quantity in sum_entries(tile(evidence, since, now_ns)).items():
                    expected[key] = expected.get(key, 0) + quantity
        assert dict(account.sums) == expected


@few
@given(fleet_histories(), sizes, st.data())
def test_gpus_of_a_node_share_their_evidence_only_if_it_is_equal(story, these, data):
    core = temporary_core()
    envelopes = story.envelopes(these)
    placer = ClaimPlacer(core.evidence, story.files)
    built: set[str] = set()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(envelopes)), max_size=4)))
    for begin, end in pairwise([0, *cuts, len(envelopes)]):
        # Spans of GPUs that were built already continue meanwhile.
        accept(core, envelopes[begin:end])
        gpus = [g for g in core.evidence.gpus if is_gpu(g) and g not in built]
        for gpu in data.draw(st.lists(st.sampled_from(gpus), unique=True)) if gpus else ():
            built.add(gpu)
            if not any(map(core.evidence.has_unplaced, core.evidence.nodes_of(gpu))):
                expected = build_evidence(core.evidence.facts(gpu), story.files)
                assert placer.evidence(gpu) == expected


@few
@given(fleet_histories(), sizes, st.data())
def test_a_restart_at_any_point_changes_nothing(story, these, data):
    envelopes = story.envelopes(these)
    cut = data.draw(st.integers(0, len(envelopes)))
    whole, first, second = temporary_core(), temporary_core(), temporary_core()
    accept(whole, envelopes)
    accept(first, envelopes[:cut])
    resume_from(second, checkpoint_of(first))
    accept(second, envelopes[data.draw(st.integers(0, cut)) :])
    same(whole, second, story.files)
    for gpu in whole.evidence.gpus:
        roots = [
            evidence_root(build_evidence(core.evidence.facts(gpu), story.files)[0])
            for core in (whole, second)
        ]
        assert roots[0] == roots[1]
