"""Authority of the claims that nodes report: never above the limit of the token, nor the administrator's."""

from __future__ import annotations

from pathlib import Path

import pytest
from core_queries import compute_states, new_problems
from hypothesis import given, strategies as st
from msgspec.structs import replace
from stories import SLOTS
from support.metered import tile
from support.story import (
    NodeReporter,
    accept,
    claim_ended,
    claim_started,
    core_in,
    gpus_of,
    known_of,
)

from railscope.claim_terms import ClaimAuthority
from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.files import claims_file
from railscope_collector.framelog.segment_files import FrameRecord
from railscope_collector.state.collector_state import CollectorState

FILE = "tenant,holds,from,to\nowner,GPU-0,2026-09-04T00:00:00Z,2026-09-04T00:01:40Z\n"


def reports_(max_authority: int = 3, **facts: str) -> list:
    """One claim of a node whose token has this limit."""
    events = {10: [claim_started("GPU-0", "job", 10, tenant="guest", **facts)]}
    made = NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 101, 10), events=events)
    return [(replace(record, max_authority=max_authority), found) for record, found in made]


def test_an_administrator_in_an_envelope_does_not_override_the_claims_file(core: CollectorState):
    problems = new_problems(core)
    accept(core, reports_(level="administrator"))
    files = AdministratorInputs(claims_file.parse_claims(FILE))
    assert compute_states(core, 100, files=files) == [("observed", "owner", 0, 100)]
    assert [(problem.kind, problem.node, problem.facts) for problem in problems] == [
        (
            "rank_lowered",
            "n1",
            {"source": "slurm", "reported": "administrator", "accepted": "scheduler"},
        )
    ]


@pytest.mark.parametrize(("reported", "limit", "rank"), [
    ("administrator", 3, 3), ("scheduler", 3, 3), ("scheduler", 2, 2), ("scheduler", 1, 1),
    ("node_plugin", 2, 2), ("process", 3, 1), ("administrator", 1, 1),
])  # fmt: skip
def test_a_claim_has_the_lower_of_the_reported_rank_and_the_limit(
    core: CollectorState, reported: str, limit: int, rank: int
):
    accept(core, reports_(limit, level=reported))
    assert [claim.authority for claim in known_of(core, "GPU-0").evidence.claims] == [
        ClaimAuthority(rank)
    ]


def test_a_lowered_rank_is_recorded_once_per_node_and_provider(
    core: CollectorState, tmp_path: Path
):
    problems = new_problems(core)
    for number in range(5):
        events = {
            second + 1000 * number: [
                claim_started(
                    "GPU-0", f"{number}-{second}", second, level="administrator", source=source
                )
                for source in ("file", "slurm", f"invented-{number}-{second}")
            ]
            for second in range(0, 50, 10)
        }
        reporter = NodeReporter(run=f"run-{number}")
        accept(core, reporter.envelopes_of(gpus_of("GPU-0"), sorted(events), events=events))
    assert sorted(problem.facts["source"] for problem in problems) == ["file", "other", "slurm"]
    again = core_in(tmp_path / "again")
    later = new_problems(again)
    events = {9000: [claim_started("GPU-0", "x", 9000, level="administrator", source="file")]}
    accept(again, NodeReporter(run="late").envelopes_of(gpus_of("GPU-0"), [9000], events=events))
    assert later[0].id in {problem.id for problem in problems}, "a restart does not record it again"


def test_a_record_of_the_frame_log_keeps_the_limit_of_its_token():
    record = reports_(2)[0][0]
    old = FrameRecord(record.node, record.received_wall_ns, record.sent, record.body)
    assert (record.max_authority, old.max_authority) == (2, 3)


@st.composite
def claim_envelopes(draw) -> list:
    """Claims of any rank on a GPU, some of which end."""
    events: dict[int, list] = {}
    for number in range(draw(st.integers(1, 5))):
        begin = draw(st.integers(0, 100))
        levels = ["administrator", "scheduler", "node_plugin", "process"]
        slots = draw(st.sampled_from(SLOTS))
        one = claim_started(
            "GPU-0",
            f"c{number}",
            begin,
            level=draw(st.sampled_from(levels)),
            tenant="guest",
            compute=slots,
            memory=slots,
            exclusive=draw(st.sampled_from(["true", "false"])),
        )
        events.setdefault(10 * draw(st.integers(0, 10)), []).append(one)
        if draw(st.booleans()):
            end = claim_ended("GPU-0", f"c{number}", begin + draw(st.integers(1, 50)))
            events.setdefault(10 * draw(st.integers(0, 10)), []).append(end)
    limit = draw(st.integers(1, 3))
    made = NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 101, 10), events=events)
    return [(replace(record, max_authority=limit), found) for record, found in made]


@given(claim_envelopes())
def test_no_envelope_changes_what_an_administrator_claim_holds(tmp_path_factory, envelopes):
    core = core_in(tmp_path_factory.mktemp("schemas"))
    accept(core, envelopes)
    evidence = known_of(core, "GPU-0", AdministratorInputs(claims_file.parse_claims(FILE))).evidence
    alone = replace(evidence, claims=tuple(c for c in evidence.claims if c.source == "file"))
    window = (evidence.stays[0].start_ns, evidence.stays[0].start_ns + 200 * 10**9)
    held = [
        [
            (e.tiling, e.slot_lo, e.slot_hi, e.t0_ns, e.t1_ns)
            for e in tile(one, *window)
            if e.tenant == "owner"
        ]
        for one in (evidence, alone)
    ]
    areas = [sum((hi - lo) * (t1 - t0) for _, lo, hi, t0, t1 in rows) for rows in held]
    assert areas[0] == areas[1] > 0
