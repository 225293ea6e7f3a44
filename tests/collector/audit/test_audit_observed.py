"""Events of agents are recorded once, also if they are repeated, late, or too many at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.agent_events import AgentEvents
from support.audit import verify_directory
from support.event_recording import record_events, recorded_events, run_observers, wait_for_records
from support.examples import fewer_examples

from railscope.audit.record import AuditRecord
from railscope.catalog.agent import GAP_EVENT
from railscope.catalog.nic_settings import SUPPRESSED_EVENT
from railscope.catalog.tenancy import UNCLAIMED_END_EVENT, UNCLAIMED_START_EVENT
from railscope_collector.audit.log_secrets import PersonalSalts
from railscope_collector.audit.recorder_state import DOCUMENT
from railscope_collector.fleet.recent_events import SeenEvent


async def test_claims_become_assignments_and_releases(tmp_path: Path) -> None:
    teller = AgentEvents()
    async with run_observers(tmp_path) as observed:
        assign, release = await recorded_events(
            observed, [teller.claimed("a"), teller.released("a")]
        )
    assert (assign.type, assign.out, release.type) == ("tenancy.assign", "done", "tenancy.release")
    assert (assign.actor.kind, assign.actor.id) == ("scheduler", "slurm")
    assert (assign.obj.node, assign.obj.gpu, assign.data["claim"]) == ("n1", "GPU-1", "a")
    assert (assign.src.kind, assign.src.id, assign.src.boot, assign.src.n) == (
        "agent",
        "n1",
        "run-1",
        0,
    )
    assert assign.ref == ["frame/n1/run-1/tenancy/1/0"]
    assert assign.data["workload"] == "job 7"
    found = verify_directory(tmp_path / "log")
    assert found.findings == ()


async def test_another_holder_is_a_transfer_and_equal_slots_are_a_conflict(tmp_path: Path) -> None:
    teller = AgentEvents()
    reported = [
        teller.claimed("a"), teller.claimed("a", tenant="blue"),
        teller.claimed("b", compute="400-840"), teller.claimed("c", compute="0-100", level="admin"),
        teller.claimed("d", exclusive="false"),
    ]  # fmt: skip
    async with run_observers(tmp_path) as observed:
        found = await recorded_events(observed, reported)
    kinds = ["assign", "transfer", "conflict", "assign", "assign", "assign"]
    assert [record.type for record in found] == [f"tenancy.{kind}" for kind in kinds]
    assert (found[2].data["claim_before"], found[2].data["claim"]) == ("a", "b")
    assert (found[2].src.kind, found[3].src.n) == ("collector", 2)


@pytest.mark.parametrize(
    ("facts", "kind"),
    [
        ({"change": "mig_mode", "before": "0", "after": "1"}, "device.mig"),
        ({"change": "mig_devices"}, "device.mig"),
        ({"change": "removed"}, "device.retire"),
        ({"change": "ecc_mode"}, "device.ecc"),
        ({"change": "compute_mode"}, "device.compute_mode"),
        ({"change": "power_limit"}, "device.power_limit"),
        ({"change": "added"}, "node.join"),
        ({"change": "facts", "after": "driver: 550 -> 570"}, "device.driver"),
        ({"change": "facts", "after": "vbios: 1 -> 2"}, "device.firmware"),
    ],
)
async def test_changes_of_gpus_have_their_types(
    tmp_path: Path, facts: dict[str, str], kind: str
) -> None:
    async with run_observers(tmp_path) as observed:
        (record,) = await recorded_events(observed, [AgentEvents().changed(**facts)])
    assert (record.type, record.obj.gpu, record.data["change"]) == (kind, "GPU-1", facts["change"])


@pytest.mark.parametrize(
    ("setting", "kind"),
    [
        ("pfc", "pfc"), ("pfc_delay_bits", "pfc"), ("pause", "pfc"), ("trust", "dscp"),
        ("dscp_map", "dscp"), ("ecn_reaction", "ecn"), ("rp_clamp_tgt_rate", "ecn"),
        ("np_cnp_dscp", "dscp"), ("mtu", "mtu"), ("buffer_size", "buffer"), ("firmware", "nic_firmware"),
        ("fec", "link_admin"), ("autonegotiation", "link_admin"),
    ],
)  # fmt: skip
async def test_settings_of_nics_have_their_types(tmp_path: Path, setting: str, kind: str) -> None:
    async with run_observers(tmp_path) as observed:
        (record,) = await recorded_events(observed, [AgentEvents().set(setting)])
    assert (record.type, record.data["interface"]) == (f"network.{kind}", "eth0")


async def test_gaps_and_use_without_a_claim_are_evidence(tmp_path: Path) -> None:
    teller = AgentEvents()
    reported = [
        teller.event(GAP_EVENT, "spool_full", frames="7", envelopes="1"),
        teller.event(SUPPRESSED_EVENT, changes="90"),
        teller.event(UNCLAIMED_START_EVENT, "GPU-1", "u", source="process", level="process"),
        teller.event(UNCLAIMED_END_EVENT, "GPU-1", "u", source="process", level="process"),
    ]
    async with run_observers(tmp_path) as observed:
        found = await recorded_events(observed, reported)
    kinds = ["evidence.gap", "evidence.gap", *["tenancy.unclaimed_use"] * 2]
    assert [record.type for record in found] == kinds
    assert found[0].data["frames"] == "7"


async def test_a_node_joins_boots_and_is_upgraded_once(tmp_path: Path) -> None:
    one, booted = AgentEvents(), AgentEvents(boot_id="boot-2", run="run-2")
    came = [
        one.envelope(1), one.envelope(2), booted.envelope(3), booted.envelope(4, "2.0"),
        one.envelope(5), booted.envelope(6, "2.0"),
    ]  # fmt: skip
    for boot in ("b0", "b1"):
        async with run_observers(tmp_path, boot) as observed:
            for record, envelope in came:
                observed.check_envelope(record, envelope)
            found = await wait_for_records(observed)
    assert [record.type for record in found] == ["node.join", "node.boot", "admin.upgrade"]
    assert [record.data["boot_id"] for record in found] == ["boot-1", "boot-2", "boot-2"]
    assert (found[2].data["before"], found[2].data["version"]) == ("1.0", "2.0")


@fewer_examples(10)
@given(data=st.data())
def test_each_event_is_recorded_once_over_replays_restarts_and_disorder(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("observed")
    tellers = [AgentEvents("n1"), AgentEvents("n1", "run-2"), AgentEvents("n2")]
    reported = [
        teller.claimed(f"{teller.node}/{teller.run}/{number}", f"GPU-{number}")
        for teller in tellers
        for number in range(4)
    ]

    async def live(boot: str, events: list[SeenEvent], kept: int) -> None:
        async with run_observers(directory, boot) as observed:
            record_events(observed, tellers)
            for at, seen in enumerate(events):
                if at == kept:
                    # A segment is deleted: its events must be in the copy, or in the log.
                    content = observed.snapshot()
                    assert content is not None
                    observed.store_copy()
                    copies.append(content)
                    forgotten.update((one.node, one.position) for one in reported_so_far)
                observed.queue_event(seen)
                reported_so_far.append(seen)
                if data.draw(st.booleans()):
                    await asyncio.sleep(0)
            if data.draw(st.booleans()):
                await wait_for_records(observed)
        if data.draw(st.booleans()):  # it was killed, and stored nothing at its end
            store = observed.store
            store.open()
            with store.transaction() as connection:
                connection.execute("DELETE FROM documents")
                if copies:
                    store.put_document(connection, DOCUMENT, copies[-1])
            store.close()

    reported_so_far: list[SeenEvent] = []
    forgotten: set[object] = set()
    copies: list[bytes] = []
    order = data.draw(st.permutations(reported))
    cut = data.draw(st.integers(0, len(reported)))
    for part, boot in ((order[:cut], "b0"), (order[cut:], "b1")):
        replayed = [seen for seen in reported_so_far if (seen.node, seen.position) not in forgotten]
        events = [*replayed, *part]
        # A segment is closed only behind what was replayed.
        kept = data.draw(st.integers(len(replayed), len(events)))
        asyncio.run(live(boot, events, kept))

    async def last() -> list[AuditRecord]:
        async with run_observers(directory, "b2") as observed:
            left = [seen for seen in reported_so_far if (seen.node, seen.position) not in forgotten]
            return await recorded_events(observed, left)

    found = asyncio.run(last())
    of_agents = [record.src for record in found if record.src.kind == "agent"]
    numbers = sorted((source.id, source.boot, source.n) for source in of_agents)
    assert numbers == sorted((t.node, t.run, n) for t in tellers for n in range(4))
    joined = [record.obj.node for record in found if record.type == "node.join"]
    assert sorted(joined) == ["n1", "n2"]
    conflicts = [str(record.data) for record in found if record.type == "tenancy.conflict"]
    assert len(conflicts) == len(set(conflicts)) == len(reported)
    assert verify_directory(directory / "log").findings == ()


async def test_a_name_of_a_person_is_only_committed_to(tmp_path: Path) -> None:
    teller = AgentEvents()
    reported = [
        teller.claimed("a", owner="zoe"),
        teller.claimed("b", owner="team-ns", source="kubernetes", compute="0-0"),
        teller.claimed("c", gpu="GPU-2", owner="zoe"),
    ]
    async with run_observers(tmp_path) as observed:
        user, namespace, again = await recorded_events(observed, reported)
        raws = b"".join(observed.audit.records(0))
    assert b"zoe" not in raws
    assert "owner" not in user.data
    assert (
        user.pii["owner"]
        == again.pii["owner"]
        == PersonalSalts(tmp_path / "personal").find_commitment("zoe")
    )
    assert (namespace.data["owner"], namespace.pii) == ("team-ns", {})
