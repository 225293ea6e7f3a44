"""Properties of the evidence: it knows neither order nor batches, and the account is the engine's."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, strategies as st
from msgspec.structs import replace
from stories import fleet_histories
from support.checkpoints import checkpoint_of, resume_from
from support.examples import fewer_examples
from support.metered import tile
from support.story import SECOND, accept, at, core_in, known_of, no_turns

from collector.account.account_sums import sum_entries
from collector.account.live_account import LiveAccount
from collector.evidence.claim_events import ReportedClaim
from collector.evidence.gpu_evidence import build_evidence
from collector.ledger.day_tiling import evidence_root
from collector.state.collector_state import CollectorState

few = fewer_examples(50)
since_the_newest = st.sampled_from([-15, -8, -3, -1, 0, 1, 5, 40, 400, 8000])
"""Seconds from the arrival of the newest frame to the refresh."""
sizes = st.lists(st.integers(1, 30), min_size=1, max_size=4)


def empty() -> CollectorState:
    return core_in(Path(tempfile.mkdtemp()))


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
    core, other = empty(), empty()
    accept(core, story.envelopes(these))
    # Delivery as it was sent; who was heard of first is a matter of when that was.
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
    """Asked before and after the newest sample, which may be newer than the instant of the question."""
    core = empty()
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
def test_a_restart_at_any_point_changes_nothing(story, these, data):
    envelopes = story.envelopes(these)
    cut = data.draw(st.integers(0, len(envelopes)))
    whole, first, second = empty(), empty(), empty()
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
