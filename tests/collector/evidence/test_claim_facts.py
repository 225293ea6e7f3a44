"""Facts of claim events: shares, claims without a device, boot clocks, and the authority of a node."""

from __future__ import annotations

from fractions import Fraction

import pytest
from core_queries import ALICE, compute_states, new_problems
from hypothesis import given, strategies as st
from msgspec.structs import replace
from support.story import (
    SECOND,
    NodeReporter,
    accept,
    at,
    claim_ended,
    claim_started,
    gpus_of,
    known_of,
)

from railscope.claim_terms import (
    MAX_DENOMINATOR,
    ClaimAuthority,
    ShareError,
    checked_share,
    parse_share,
    parse_written_share,
    share_text,
)
from railscope.frame import Event
from railscope.wire import WireEntity, WireEvent
from railscope_collector.evidence.claim_events import (
    ClaimEventError,
    ReportedClaim,
    ReportedEnd,
    ReportingBoot,
    find_ends,
    first_report_key,
    is_repetition,
    parse_claim_event,
)
from railscope_collector.evidence.node_claims import reported_id
from railscope_collector.state.collector_state import CollectorState

BOOTED = 5000
"""Seconds from the boot of a `NodeReporter` to second 0 of a story."""
TELLER = ReportingBoot("n1", "boot-1", at(-BOOTED))


def wire(event: Event, second: float = 0) -> WireEvent:
    entity = WireEntity(event.entity.kind.name, event.entity.key, {})
    boot_ns = round((second + BOOTED) * SECOND)
    return WireEvent(event.event_class.name, 0, entity, event.wall_ns, boot_ns, dict(event.facts))


def claim(gpu: str = "GPU-0", **facts: str) -> ReportedClaim:
    found = parse_claim_event(TELLER, wire(claim_started(gpu, "a", 0, tenant="alice", **facts)))
    assert isinstance(found, ReportedClaim)
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1/1000", "1/1000"),
        ("810/1000", "81/100"),
        ("1/840", "1/840"),
        ("4/4", "1/1"),
        (f"1/{MAX_DENOMINATOR}", f"1/{MAX_DENOMINATOR}"),
    ],
)
def test_a_share_is_an_exact_fraction_in_lowest_terms(text: str, expected: str):
    found = claim(share=text, exclusive="false")
    assert found.share == expected
    assert not found.exclusive
    assert not claim(share=text).exclusive, "a claim of a share is never exclusive"


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("false", False), ("", True)])
def test_a_claim_is_exclusive_unless_it_is_reported_as_shared(text: str, *, expected: bool):
    assert claim(exclusive=text).exclusive is expected


@pytest.mark.parametrize("text", ["maybe", "False", "1", " true"])
def test_exclusive_has_no_other_values(text: str):
    with pytest.raises(
        ClaimEventError, match=f"invalid exclusive '{text}': expected true or false"
    ):
        claim(exclusive=text)


@pytest.mark.parametrize(
    "text", ["0/4", "5/4", "1/0", "-1/4", "0.5", "half", "1/4/2", f"1/{MAX_DENOMINATOR + 1}", "²/4"]
)
def test_text_that_is_not_a_share_is_rejected(text: str):
    with pytest.raises(ClaimEventError, match="invalid share"):
        claim(share=text, exclusive="false")


@given(st.integers(1, MAX_DENOMINATOR), st.integers(1, MAX_DENOMINATOR))
def test_every_share_is_written_and_read_back(one: int, other: int):
    share = Fraction(min(one, other), max(one, other))
    assert parse_share(share_text(checked_share(share))) == share


@pytest.mark.parametrize("where", ["gpu", "id", "fact"])
def test_text_that_no_database_keeps_is_rejected(where: str):
    """The ingest rejects it as well; frames of earlier versions may contain it."""
    event = wire(claim_started("GPU-0", "a", 0))
    if where == "fact":
        event = replace(event, facts={**event.facts, "owner": "a\0b"})
    else:
        key = ("GPU\0", "a") if where == "gpu" else ("GPU-0", "a\0")
        event = replace(event, entity=replace(event.entity, key=key))
    with pytest.raises(ClaimEventError, match="expected texts of at most"):
        parse_claim_event(TELLER, event)


def test_a_person_may_write_a_share_in_percent():
    assert parse_written_share("37.5%") == Fraction(3, 8)
    assert parse_written_share(" 810/1000 ") == Fraction(81, 100)
    for text in ("0%", "100.1%", "37,5%", "0.5"):
        with pytest.raises(ShareError, match="expected a fraction such as 3/8"):
            parse_written_share(text)


def test_a_claim_without_a_device_has_a_count():
    assert (claim("", count="8").gpu, claim("", count="8").count) == ("@n1", 8)
    with pytest.raises(ClaimEventError, match="invalid key of a claim"):
        claim("@n1", count="8")
    assert claim("", count="2", share="1/2", exclusive="false").share == "1/2"
    assert claim("GPU-0").count == 0


@pytest.mark.parametrize(("gpu", "count"), [("", ""), ("", "0"), ("", "1025"), ("GPU-0", "2")])
def test_a_count_is_of_a_claim_without_a_device(gpu: str, count: str):
    with pytest.raises(ClaimEventError, match="count"):
        claim(gpu, **({"count": count} if count else {}))


def test_no_node_has_the_authority_of_an_administrator(core: CollectorState):
    events = {10: [claim_started("GPU-0", "a", 0, tenant="mallory", level="administrator")]}
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 51, 10), events=events))
    (found,) = known_of(core, "GPU-0").evidence.claims
    assert found.authority is ClaimAuthority.SCHEDULER


def test_what_was_stored_with_more_authority_is_lowered_too(core: CollectorState):
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 51, 10)))
    stored = ReportedClaim(at(0), "GPU-0", "n1", "a", ClaimAuthority.ADMINISTRATOR, tenant="alice")
    core.evidence.add_claims([stored])
    (found,) = known_of(core, "GPU-0").evidence.claims
    assert found.authority is ClaimAuthority.SCHEDULER


def test_a_step_of_the_wall_clock_moves_no_edge_that_has_a_boot_time(core: CollectorState):
    start = claim_started(
        "GPU-0", "a", 40 + 3600, **ALICE, start_boot_ns=str((40 + BOOTED) * SECOND)
    )
    end = claim_ended("GPU-0", "a", 75 - 3600)
    end.facts["end_boot_ns"] = str((75 + BOOTED) * SECOND)
    accept(
        core,
        NodeReporter().envelopes_of(
            gpus_of("GPU-0"), range(0, 101, 5), events={50: [start], 80: [end]}
        ),
    )
    assert compute_states(core, 100) == [
        ("idle", "", 0, 40),
        ("observed", "alice", 40, 75),
        ("idle", "", 75, 100),
    ]


def test_a_boot_time_beyond_all_time_is_rejected(core: CollectorState):
    problems = new_problems(core)
    events = {10: [claim_started("GPU-0", "a", 0, start_boot_ns=str((1 << 63) - 2))]}
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 51, 10), events=events))
    assert [t.kind for t in problems] == ["rejected_claim"]


def report(
    boot: str, reported_second: float, start_second: float, *, by_boot: bool = True
) -> ReportedClaim:
    """A report of one claim, by an anchor that places the start at this second."""
    return ReportedClaim(
        at(start_second),
        "GPU-0",
        "n1",
        "a",
        ClaimAuthority.SCHEDULER,
        boot=boot,
        reported_ns=at(reported_second),
        start_boot_ns=BOOTED * SECOND if by_boot else -1,
    )


def test_a_report_that_is_repeated_adds_nothing_though_the_clocks_drift():
    first = report("boot-1", 5, 0)
    assert is_repetition(first, report("boot-1", 3600, -0.07)), "the same start, an hour later"
    assert not is_repetition(first, report("boot-1", 4, 0.5)), "an earlier report arrives later"
    assert not is_repetition(first, report("boot-2", 3600, 0)), "another boot"
    assert not is_repetition(report("", 5, 0, by_boot=False), report("", 9, 1, by_boot=False))


@given(
    st.permutations(
        [
            report("boot-1", 5, 0),
            report("boot-1", 3600, -0.07),
            report("boot-2", 9000, -3600, by_boot=False),
        ]
    )
)
def test_the_first_report_by_a_boot_clock_counts_in_whatever_order_they_come(
    reports: list[ReportedClaim],
):
    assert min(reports, key=first_report_key).start_ns == at(0)


def test_an_end_by_the_wall_clock_of_a_later_boot_counts_only_without_another():
    one = report("boot-1", 5, 0)
    later = ReportedClaim(
        at(0),
        "GPU-0",
        "n1",
        "a",
        ClaimAuthority.SCHEDULER,
        boot="boot-2",
        reported_ns=at(900),
        end_ns=at(-3000),
    )
    end = ReportedEnd(at(500), "GPU-0", "n1", "a")
    assert find_ends([one, later], [end], []) == {("n1", "a"): at(500)}
    assert find_ends([one, later], [], []) == {("n1", "a"): at(-3000)}


@pytest.mark.parametrize(
    ("name", "found"),
    [("a", "a"), ("a#100", "a"), ("a@n1", "a"), ("a@n1#5#7", "a"), ("b#1", "b#1"), ("b#1#5", "b#1"),
     ("c", ""), ("#", ""), ("", "")],
)  # fmt: skip
def test_a_part_of_a_claim_is_found_by_the_id_that_was_reported(name, found):
    assert reported_id(name, {"a": "", "b#1": ""}) == found
