"""Administrators' files of owners, claims, maintenance and reservations, and invalid ones."""

from __future__ import annotations

import pytest
from core_queries import ALICE, compute_states, story_time
from support.story import (
    NodeReporter,
    accept,
    account_at,
    at,
    claim_ended,
    claim_started,
    cut,
    gpus_of,
    known_of,
    seconds_of,
)

from railscope_collector.evidence.gpu_evidence import AdministratorInputs
from railscope_collector.evidence.node_intervals import MAX_GPUS
from railscope_collector.files import calendar_file, claims_file, tenants_file, watched_file
from railscope_collector.files.retirements_file import RetiredGpus, Retirement
from railscope_collector.metering.evidence import Evidence, NodeStay
from railscope_collector.metering.tiling import GpuTimeline
from railscope_collector.metering.units import Tiling
from railscope_collector.state.collector_state import CollectorState


def test_stamps_are_seconds_of_the_story():
    found = claims_file.parse_claims(f"tenant,holds,from,to\na,b,{story_time(3661)},\n")
    assert next(iter(found)).start_ns == at(3661)


def test_an_owner_has_the_tenant_of_the_file_at_each_time(core: CollectorState):
    events = {10: [claim_started("GPU-0", "a", 0, owner="ns", source="kubernetes")]}
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    assert compute_states(core, 100) == [("observed", "kubernetes:ns", 0, 100)], (
        "marked, and not lost"
    )
    text = (
        "tenant,source,owner,from,to\n"
        f"anyone,*,ns,{story_time(20)},{story_time(80)}\n"
        f"alice,kubernetes,ns,{story_time(40)},{story_time(60)}\n"
    )
    files = AdministratorInputs(tenants=tenants_file.parse_tenants(text))
    assert compute_states(core, 100, files=files) == [
        ("observed", "kubernetes:ns", 0, 20), ("observed", "anyone", 20, 40),
        ("observed", "alice", 40, 60), ("observed", "anyone", 60, 80),
        ("observed", "kubernetes:ns", 80, 100),
    ]  # fmt: skip
    evidence = known_of(core, "GPU-0", files).evidence
    assert len({claim.id for claim in evidence.claims}) == 5


def test_another_name_of_a_tenant_moves_no_time_between_claims(core: CollectorState):
    """A claim within another one holds after the owner of the outer one has another tenant."""
    events = {
        10: [claim_started("GPU-0", "team", 0, owner="ns")],
        20: [claim_started("GPU-0", "guest", 20, tenant="guest")],
    }
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    text = (
        "tenant,source,owner,from,to\n"
        f"old,slurm,ns,{story_time(0)},{story_time(50)}\n"
        f"new,slurm,ns,{story_time(50)},\n"
    )
    files = AdministratorInputs(tenants=tenants_file.parse_tenants(text))
    assert compute_states(core, 100, files=files) == [
        ("observed", "old", 0, 20),
        ("observed", "guest", 20, 100),
    ]


def test_an_administrator_goes_before_the_scheduler(core: CollectorState):
    events = {10: [claim_started("GPU-0", "a", 0, **ALICE)]}
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    text = f"tenant,holds,from,to\nbob,GPU-0,{story_time(30)},{story_time(60)}\n"
    assert compute_states(
        core, 100, files=AdministratorInputs(claims=claims_file.parse_claims(text))
    ) == [("observed", "alice", 0, 30), ("observed", "bob", 30, 60), ("observed", "alice", 60, 100)]


@pytest.mark.parametrize("suffix", ["", "@train"])
def test_a_node_gives_no_profile_to_an_administrators_claim(core: CollectorState, suffix: str):
    """A profile has a price of its own."""
    name = f"file/GPU-0/bob/{at(0)}"
    events = {10: [claim_started("GPU-0", name, 0, profile="1g.10gb", tenant="bob")]}
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    workload = suffix.removeprefix("@")
    text = f"tenant,holds,from,to,workload\nbob,GPU-0,{story_time(0)},,{workload}\n"
    files = AdministratorInputs(claims=claims_file.parse_claims(text))
    known = known_of(core, "GPU-0", files)
    assert {claim.id for claim in known.evidence.claims} >= {f"{name}{suffix}"}
    assert f"{name}{suffix}" not in known.profiles
    assert set(known.profiles.values()) == {"1g.10gb"}, "the node's own claim has it"


def test_a_gpu_that_is_named_as_a_node_is_none_of_an_administrators(core: CollectorState):
    """A node invents it: the holder of the other node would pay for it."""
    accept(core, NodeReporter("n2").envelopes_of(gpus_of("n1"), range(0, 101, 10)))
    claims = claims_file.parse_claims(f"tenant,holds,from,to\nbob,n1,{story_time(0)},\n")
    reserved = (
        f'[[reservation]]\nname = "r"\ntenant = "bob"\nholds = "n1"\nfrom = {story_time(0)}\n'
    )
    files = AdministratorInputs(claims=claims, calendar=calendar_file.parse_calendar(reserved))
    evidence = known_of(core, "n1", files).evidence
    assert (evidence.claims, evidence.reservations) == ((), ())


def test_a_node_reports_no_gpu_of_a_job_list(core: CollectorState):
    """Its days would replace those of the list in the ledger."""
    listed = "n1/00000000:3B:00.0"
    events = {10: [claim_started(listed, "a", 0, tenant="bob"), claim_ended(listed, "a", 5)]}
    schema, node = gpus_of(listed, "GPU-0"), NodeReporter("n2")
    accept(core, node.envelopes_of(schema, range(0, 101, 10), events=events))
    for name in (listed, "@n1"):
        accept(core, node.envelopes_of(cut(name, "3g.40gb"), range(0, 101, 10)))
    assert set(core.evidence.gpus) == {"GPU-0"}


def test_a_node_reports_the_layouts_of_so_many_gpus_only(core: CollectorState):
    node = NodeReporter("n2")
    for number in range(MAX_GPUS + 2):
        accept(core, node.envelopes_of(cut(f"GPU-{number}"), [number]))
    assert len(core.evidence.gpus) == MAX_GPUS
    assert core.evidence.excess_gpus > 0


def test_a_node_ends_no_part_of_an_administrators_claim(core: CollectorState):
    """The part after a retirement has a name of its own."""
    name = f"file/GPU-0/bob/{at(0)}#{at(60)}"
    events = {
        70: [claim_started("GPU-0", name, 0, tenant="bob")],
        80: [claim_ended("GPU-0", name, 65)],
    }
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 101, 10), events=events))
    claims = claims_file.parse_claims(f"tenant,holds,from,to\nbob,GPU-0,{story_time(0)},\n")
    retired = RetiredGpus.from_rows([Retirement(at(40), at(60), "GPU-0")])
    files = AdministratorInputs(claims=claims, retired=retired)
    assert compute_states(core, 100, files=files) == [
        ("observed", "bob", 0, 40),
        ("observed", "bob", 60, 100),
    ]


async def test_a_calendar_has_maintenance_outages_and_reservations(core: CollectorState):
    events = {0: [claim_started("GPU-0", "a", 0, **ALICE)]}
    accept(
        core,
        NodeReporter().envelopes_of(gpus_of("GPU-0", "GPU-1"), range(0, 101, 10), events=events),
    )
    text = f"""
        [[maintenance]]
        holds = "n1"
        from = {story_time(20)}
        to = {story_time(30)}
        [[outage]]
        holds = "GPU-0"
        from = "{story_time(40)}"
        to = "{story_time(50)}"
        [[reservation]]
        name = "r1"
        tenant = "bob"
        holds = "GPU-1"
        from = {story_time(60)}
    """
    account = await account_at(
        core, 100, AdministratorInputs(calendar=calendar_file.parse_calendar(text))
    )
    assert account.balances
    assert seconds_of(account) == {
        ("observed", "alice"): 80, ("maintenance", "alice"): 10, ("down", "alice"): 10,
        ("idle", ""): 50, ("maintenance", ""): 10, ("reserved", "bob"): 40,
    }  # fmt: skip


def test_of_two_reservations_the_one_that_began_last_holds_wherever_the_gpu_was():
    entry = '[[reservation]]\nname = "{0}"\ntenant = "{0}"\nholds = "{1}"\nfrom = {2}\n'
    text = "\n".join((
        entry.format("node", "n1", story_time(0)),
        entry.format("gpu", "GPU-0", story_time(10)),
    ))  # fmt: skip
    stays = [(at(0), at(20), "n2"), (at(20), at(100), "n1")]
    reservations = calendar_file.parse_calendar(text).reservations("GPU-0", stays)
    evidence = Evidence(
        "GPU-0",
        tuple(NodeStay(start, node, end) for start, end, node in stays),
        reservations=tuple(reservations),
    )
    entries = GpuTimeline.compute(evidence).entries(at(0), at(100))
    found = [
        (each.tenant, each.t0_ns, each.t1_ns) for each in entries if each.tiling is Tiling.COMPUTE
    ]
    assert found == [("", at(0), at(10)), ("gpu", at(10), at(20)), ("gpu", at(20), at(100))]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[holiday]]\n", "holiday"),
        ("[[maintenance]]\nholds = 'n1'\n", "maintenance 1: missing key from: expected all of "),
        ("[[outage]]\nholds = 'n1'\nfrom = 2026-01-01T00:00:00\n", "with an offset"),
        ("[[outage]]\nholds = 'n1'\nfrom = 2026-01-02T00:00:00Z\nto = 2026-01-01T00:00:00Z\n", "expected an end after"),
        ("[[outage]]\nholds = ''\nfrom = 2026-01-02T00:00:00Z\n", "invalid holds: expected a string"),
        ("[[outage]]\nwhat = 1\nholds = 'x'\nfrom = 2026-01-02T00:00:00Z\n", "unknown key what: expected one of"),
        ("outage = 3\n", "expected tables"),
        ("[[outage\n", "line 1"),
    ],
)  # fmt: skip
def test_a_calendar_that_cannot_be_names_the_entry(text: str, problem: str):
    with pytest.raises(watched_file.FileError, match=problem):
        calendar_file.parse_calendar(text)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (",slurm,x,2026-01-01T00:00:00Z,", "line 2"),
        ("a:b,slurm,x,2026-01-01T00:00:00Z,", "colon"),
        ("a,slurm,x,yesterday,", "invalid time"),
    ],
)
def test_a_tenants_file_that_cannot_be_names_the_line(row: str, problem: str):
    with pytest.raises(watched_file.FileError, match=problem):
        tenants_file.parse_tenants(f"tenant,source,owner,from,to\n{row}\n")
