"""Claims of a node without a device: live account and ledger days place them alike, and again the same."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from core_queries import new_problems
from ledger_days import HOURS, LATER, ledger_hours
from support.finalizing import FinalizingCollector
from support.story import (
    DAY,
    DAY_SECONDS,
    SECOND,
    Envelopes,
    NodeReporter,
    accept,
    account_at,
    at,
    claim_ended,
    claim_started,
    gpus_of,
    seconds_of,
)

from railscope.frame import Event
from railscope_collector.evidence.claim_events import unplaced_key
from railscope_collector.evidence.claim_placement import ClaimPlacer
from railscope_collector.evidence.gpu_evidence import AdministratorInputs, build_evidence
from railscope_collector.evidence.review_decisions import find_pending_evidence
from railscope_collector.evidence.review_rules import ReviewDecisions, ReviewKind, ReviewSubject
from railscope_collector.files import inventory_file
from railscope_collector.state.collector_state import CollectorState

ALICE, BOB = {"tenant": "alice"}, {"tenant": "bob"}


def count(claim: str, second: float, number: int, **facts: str) -> Event:
    """A claim of so many GPUs without their names."""
    return claim_started("", claim, second, count=str(number), **facts)


async def test_a_count_is_billed_and_takes_free_gpus(core: CollectorState):
    events = {
        10: [claim_started("GPU-0", "a", 0, **ALICE), count("u", 20, 1, **BOB)],
        80: [claim_ended("", "u", 70)],
    }
    accept(
        core,
        NodeReporter().envelopes_of(gpus_of("GPU-0", "GPU-1"), range(0, 101, 10), events=events),
    )
    account = await account_at(core, 100)
    assert account.balances
    assert account.gpus == 2
    assert seconds_of(account) == {
        ("observed", "alice"): 100,
        ("observed", "bob"): 50,
        ("idle", ""): 50,
    }


async def test_a_count_and_a_device_that_another_source_names_are_one_job(core: CollectorState):
    job = {**BOB, "workload": "w"}
    named = claim_started("GPU-1", "p", 0, **job, source="cgroup", level="node_plugin")
    events = {10: [count("u", 0, 1, **job, source="slurm"), named]}
    accept(
        core,
        NodeReporter().envelopes_of(gpus_of("GPU-0", "GPU-1"), range(0, 101, 10), events=events),
    )
    assert seconds_of(await account_at(core, 100)) == {("observed", "bob"): 100, ("idle", ""): 100}


async def test_excess_displaces_no_claim(core: CollectorState):
    problems = new_problems(core)
    events = {10: [claim_started("GPU-0", "a", 0, **ALICE), count("u", 0, 2, **BOB)]}
    accept(
        core,
        NodeReporter().envelopes_of(gpus_of("GPU-0", "GPU-1"), range(0, 101, 10), events=events),
    )
    assert seconds_of(await account_at(core, 100)) == {
        ("observed", "alice"): 100,
        ("observed", "bob"): 100,
    }
    assert [(problem.kind, problem.node, problem.facts) for problem in problems] == [
        ("unplaced_excess", "n1", {"claim": "u", "tenant": "bob", "gpus": "1"})
    ]


async def test_what_does_not_fit_now_is_counted_until_it_does(tmp_path: Path, url: str):
    site = FinalizingCollector(tmp_path / "one", url)
    node, schema = NodeReporter(), gpus_of("GPU-0", "GPU-1")
    claims = [count("u", 10, 3, **BOB), count("w", 20, 1, share="1/2", **ALICE)]
    accept(site.core, node.envelopes_of(schema, range(0, 101, 10), events={20: claims}))
    await site.account(100)
    assert site.live.unplaced(at(5)) == {}
    assert site.live.unplaced(at(15)) == {"n1": 1}
    assert site.live.unplaced(at(100)) == {"n1": Fraction(3, 2)}
    accept(
        site.core,
        node.envelopes_of(schema, range(110, 121, 10), events={110: [claim_ended("", "u", 105)]}),
    )
    await site.account(120)
    assert site.live.unplaced(at(120)) == {}


async def test_a_claim_on_one_gpu_moves_the_count_of_its_node(core: CollectorState):
    node = NodeReporter()
    schema = gpus_of("GPU-0", "GPU-1", "GPU-2")
    accept(
        core, node.envelopes_of(schema, range(0, 51, 10), events={10: [count("u", 0, 1, **BOB)]})
    )
    assert seconds_of(await account_at(core, 50)) == {("observed", "bob"): 50, ("idle", ""): 100}
    later = {60: [claim_started("GPU-0", "a", 20, **ALICE)]}
    accept(core, node.envelopes_of(schema, range(60, 101, 10), events=later))
    account = await account_at(core, 100)
    assert seconds_of(account) == {
        ("observed", "bob"): 100,
        ("observed", "alice"): 80,
        ("idle", ""): 120,
    }


async def test_nothing_of_one_node_is_placed_on_another(core: CollectorState):
    accept(core, NodeReporter("n1").envelopes_of(gpus_of("GPU-0"), range(0, 51, 10)))
    events = {10: [count("u", 0, 4, **BOB)]}
    accept(
        core,
        NodeReporter("n2", "boot-2").envelopes_of(
            gpus_of("GPU-1"), range(0, 51, 10), events=events
        ),
    )
    assert seconds_of(await account_at(core, 50)) == {("observed", "bob"): 50, ("idle", ""): 50}


def a_day(node: NodeReporter):
    """A node's day: alice has one GPU from 6:00 to 12:00, bob two of three from 8:00 to 20:00."""
    events = {
        6 * HOURS: [claim_started("GPU-0", "a", 6 * HOURS, **ALICE)],
        8 * HOURS: [count("u", 8 * HOURS, 2, source="slurm", owner="astro")],
        12 * HOURS: [claim_ended("GPU-0", "a", 12 * HOURS)],
        20 * HOURS: [claim_ended("", "u", 20 * HOURS)],
    }
    schema = gpus_of("GPU-0", "GPU-1", "GPU-2")
    return node.envelopes_of(schema, range(0, DAY_SECONDS + HOURS, 30), each=40, events=events)


EXPECTED = {("observed", "alice"): 6, ("observed", "slurm:astro"): 24, ("idle", ""): 42}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


async def test_the_ledger_has_what_the_account_has_and_the_same_again(tmp_path: Path, url: str):
    site = FinalizingCollector(tmp_path / "one", url)
    accept(site.core, a_day(NodeReporter()))
    live = seconds_of(await account_at(site.core, DAY_SECONDS))
    assert {key: seconds / HOURS for key, seconds in live.items()} == EXPECTED
    await site.round(LATER, everything=True)
    assert ledger_hours(site) == EXPECTED
    site.restart(site.checkpoint())
    accept(site.core, a_day(NodeReporter()))
    await site.round(LATER + HOURS, everything=True)
    assert ledger_hours(site) == EXPECTED
    assert site.finalizer.counts.revisions == 0, "nothing is written again"


async def test_a_count_that_comes_late_is_a_revision_of_all_gpus_of_its_node(
    tmp_path: Path, url: str
):
    site = FinalizingCollector(tmp_path / "one", url)
    node = NodeReporter()
    schema = gpus_of("GPU-0", "GPU-1", "GPU-2")
    accept(site.core, node.envelopes_of(schema, range(0, DAY_SECONDS + HOURS, 30), each=40))
    await site.round(LATER, everything=True)
    assert ledger_hours(site) == {("idle", ""): 72}
    late = LATER + HOURS
    events = {late: [count("u", 8 * HOURS, 2, **BOB), claim_ended("", "u", 20 * HOURS)]}
    accept(site.core, node.envelopes_of(schema, [late], events=events))
    await site.round(late + 600, everything=True)
    assert ("observed", "bob") not in ledger_hours(site), "it waits for a person"
    assert site.accept_all(late + 620) == 1
    await site.round(late + 640)
    assert ledger_hours(site) == {("idle", ""): 48, ("observed", "bob"): 24}
    more = {
        late + 700: [claim_started("GPU-0", "a", 0, **ALICE), claim_ended("GPU-0", "a", 24 * HOURS)]
    }
    accept(site.core, node.envelopes_of(schema, [late + 700], events=more))
    await site.round(late + 1400, everything=True)
    assert site.accept_all(late + 1420) == 1
    await site.round(late + 1440)
    assert ledger_hours(site) == {
        ("idle", ""): 24,
        ("observed", "bob"): 24,
        ("observed", "alice"): 24,
    }, "the count makes way, on other GPUs of the node"


LATE = 5 * HOURS
"""Second at which claims are reported that count from `BELIEVED` on."""
BELIEVED = LATE - 600 - HOURS


def reported(*events: Event, **more: list[Event]) -> Envelopes:
    """A node with two GPUs for ten hours, an envelope every ten minutes; events are reported at 5:00."""
    at_start = {0: more.get("first", [])}
    schema = gpus_of("GPU-0", "GPU-1")
    seconds = range(0, 10 * HOURS + 1, 30)
    return NodeReporter().envelopes_of(
        schema, seconds, events={LATE: [*events], **at_start}, each=20
    )


async def test_the_late_part_of_a_count_waits_and_holds_what_is_free(core: CollectorState):
    accept(core, reported(count("u", HOURS, 1, **BOB)))
    assert seconds_of(await account_at(core, 10 * HOURS)) == {
        ("review", "bob"): BELIEVED - HOURS,
        ("observed", "bob"): 10 * HOURS - BELIEVED,
        ("idle", ""): 11 * HOURS,
    }


async def test_the_time_that_a_late_end_of_a_count_would_free_waits(core: CollectorState):
    accept(core, reported(claim_ended("", "u", HOURS), first=[count("u", 0, 1, **BOB)]))
    assert seconds_of(await account_at(core, 10 * HOURS)) == {
        ("observed", "bob"): HOURS,
        ("review", "bob"): BELIEVED - HOURS,
        ("idle", ""): 20 * HOURS - BELIEVED,
    }


@pytest.mark.parametrize("decided", [{}, {ReviewSubject(ReviewKind.GPU, "n1", "GPU-1"): False}])
async def test_a_claim_on_a_gpu_that_waits_frees_no_place_for_a_count(
    core: CollectorState, decided: dict
):
    inventory = inventory_file.parse_inventory(
        "node,gpus,rdma_ports,from,to\nn1,1,,2026-01-01T00:00:00Z,\n"
    )
    files = AdministratorInputs(inventory=inventory, decisions=ReviewDecisions(decided))
    late = claim_started("GPU-1", "p", HOURS, **ALICE)
    accept(core, reported(late, first=[count("u", 0, 2, **BOB)]))
    found = seconds_of(await account_at(core, 10 * HOURS, files))
    assert found["observed", "bob"] == 10 * HOURS
    assert {tenant for state, tenant in found if state == "review"} == {"alice"}


async def test_a_late_part_does_not_raise_the_precedence_of_a_count(core: CollectorState):
    """Bob's claim began before alice's: where both claim all GPUs, hers holds, as if nothing were late."""
    hers = count("w", BELIEVED - 60, 2, **ALICE)
    accept(core, reported(hers, count("u", HOURS, 2, **BOB)))
    found = seconds_of(await account_at(core, 10 * HOURS))
    assert found["observed", "alice"] == 2 * (10 * HOURS - BELIEVED)
    assert ("observed", "bob") not in found


async def test_a_count_from_before_first_contact_waits_on_the_gpus_of_its_node(
    tmp_path: Path, url: str
):
    problems = new_problems((site := FinalizingCollector(tmp_path / "one", url)).core)
    seconds = range(2 * DAY_SECONDS, 3 * DAY_SECONDS + HOURS, 30)
    events = {2 * DAY_SECONDS: [count("u", 0, 2, **BOB)]}
    schema = gpus_of("GPU-0", "GPU-1", "GPU-2")
    accept(site.core, NodeReporter().envelopes_of(schema, seconds, events=events, each=40))
    now = 3 * DAY_SECONDS + 2 * HOURS
    await site.round(now, everything=True)
    assert ledger_hours(site) == {("review", "bob"): 48}, "nothing else of that time is metered"
    assert ledger_hours(site, DAY + 2) == {("observed", "bob"): 48, ("idle", ""): 24}
    (one,) = find_pending_evidence(site.stores.store, site.stores.ledger.database, at(now))
    assert (one.gpus, one.gpu_ns) == ((), 2 * (2 * DAY_SECONDS - 120) * SECOND)
    assert (await site.account(now)).balances
    assert not [problem.kind for problem in problems if problem.kind == "unplaced_excess"]
    assert site.accept_all(now) == 1
    await site.round(now + 60)
    assert ledger_hours(site) == {("inferred", "bob"): 48}


async def test_a_count_takes_gpus_in_the_order_of_their_pci_addresses(core: CollectorState):
    addresses = {"GPU-a": "0000:C1:00.0", "GPU-c": "00000000:3b:00.0", "GPU-b": "0000:86:00.0"}
    schema = gpus_of("GPU-0", "GPU-a", "GPU-b", "GPU-c", addresses=addresses)
    events = {0: [count("u", 0, 2, **BOB)]}
    accept(core, NodeReporter().envelopes_of(schema, range(0, 101, 10), events=events))
    placer = ClaimPlacer(core.evidence, AdministratorInputs())
    assert [
        gpu for gpu in ("GPU-0", "GPU-a", "GPU-b", "GPU-c") if placer.evidence(gpu)[0].claims
    ] == ["GPU-b", "GPU-c"], "3b and 86: before c1, and before the GPU without an address"


async def test_gpus_of_a_node_with_equal_facts_have_equal_evidence_as_of_the_time_of_each(
    core: CollectorState,
):
    gpus = ("GPU-0", "GPU-1", "GPU-2")
    envelopes = NodeReporter().envelopes_of(gpus_of(*gpus), range(0, 201, 10), each=10)
    accept(core, envelopes[:1])
    files = AdministratorInputs()
    placer = ClaimPlacer(core.evidence, files)
    first, second = placer.evidence("GPU-0"), placer.evidence("GPU-1")
    assert first[1] is second[1], "built once"
    assert second == build_evidence(core.evidence.facts("GPU-1"), files)
    accept(core, envelopes[1:])
    third = placer.evidence("GPU-2")
    assert third == build_evidence(core.evidence.facts("GPU-2"), files)
    assert third[0].sample_spans[-1].last_ns > first[0].sample_spans[-1].last_ns


async def test_another_collector_reads_the_counts(tmp_path: Path, url: str):
    one, two = (
        FinalizingCollector(tmp_path / "one", url),
        FinalizingCollector(tmp_path / "two", url),
    )
    schema = gpus_of("GPU-0", "GPU-1")
    events = {10: [count("u", 0, 1, **BOB)]}
    node = NodeReporter()
    accept(one.core, node.envelopes_of(schema, range(0, 101, 10), events=events))
    await one.round(200, everything=True)
    accept(two.core, node.envelopes_of(schema, range(110, 201, 10)))
    await two.round(300, everything=True)
    await two.round(400, everything=True)
    assert two.core.evidence.has_unplaced("n1")
    found = seconds_of(await account_at(two.core, 200))
    assert found["observed", "bob"] == 90


async def test_counts_of_the_past_are_forgotten(tmp_path: Path, url: str):
    site = FinalizingCollector(tmp_path / "one", url)
    accept(site.core, a_day(NodeReporter()))
    await site.round(LATER, everything=True)
    assert not site.core.evidence.gpus[unplaced_key("n1")].claims
