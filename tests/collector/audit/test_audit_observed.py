"""Events of agents are recorded once, also if they are repeated, late, or too many at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.agent_events import AgentEvents
from support.audit import verify_directory
from support.event_recording import recorded_events, run_recorder
from support.examples import fewer_examples

from railscope.audit.record import AuditRecord
from railscope.catalog.agent import GAP_EVENT
from railscope.catalog.nic_settings import SUPPRESSED_EVENT
from railscope.catalog.tenancy import UNCLAIMED_END_EVENT, UNCLAIMED_START_EVENT
from railscope.service import run_in_thread
from railscope_collector.audit.log_secrets import PersonalSalts
from railscope_collector.audit.own_records import POSITION
from railscope_collector.audit.recorder_state import DOCUMENT
from railscope_collector.fleet.recent_events import SeenEvent


async def test_claims_become_assignments_and_releases(tmp_path: Path) -> None:
    teller = AgentEvents()
    async with run_recorder(tmp_path) as recording:
        assign, release = await recorded_events(
            recording, [teller.claimed("a"), teller.released("a")]
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


async def test_another_holder_of_a_claim_is_a_transfer(tmp_path: Path) -> None:
    teller = AgentEvents()
    reported = [
        teller.claimed("a"), teller.claimed("a", tenant="blue"), teller.claimed("a", tenant="blue"),
        teller.claimed("b", tenant="blue"),
    ]  # fmt: skip
    async with run_recorder(tmp_path) as recording:
        found = await recorded_events(recording, reported)
    assert [(record.type, record.out) for record in found] == [
        ("tenancy.assign", "done"), ("tenancy.transfer", "done"), ("tenancy.assign", "seen"), ("tenancy.assign", "done"),
    ]  # fmt: skip


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
    async with run_recorder(tmp_path) as recording:
        (record,) = await recorded_events(recording, [AgentEvents().changed(**facts)])
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
    async with run_recorder(tmp_path) as recording:
        (record,) = await recorded_events(recording, [AgentEvents().set(setting)])
    assert (record.type, record.data["interface"]) == (f"network.{kind}", "eth0")


async def test_gaps_and_use_without_a_claim_are_evidence(tmp_path: Path) -> None:
    teller = AgentEvents()
    reported = [
        teller.event(GAP_EVENT, "spool_full", frames="7", envelopes="1"),
        teller.event(SUPPRESSED_EVENT, changes="90"),
        teller.event(UNCLAIMED_START_EVENT, "GPU-1", "u", source="process", level="process"),
        teller.event(UNCLAIMED_END_EVENT, "GPU-1", "u", source="process", level="process"),
    ]
    async with run_recorder(tmp_path) as recording:
        found = await recorded_events(recording, reported)
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
        async with run_recorder(tmp_path, boot) as recording:
            for record, envelope in came:
                await recording.store(record, envelope)
            found = await recording.recorded()
    assert [record.type for record in found] == ["node.join", "node.boot", "admin.upgrade"]
    assert [record.data["boot_id"] for record in found] == ["boot-1", "boot-2", "boot-2"]
    assert (found[2].data["before"], found[2].data["version"]) == ("1.0", "2.0")


@fewer_examples(20)
@given(data=st.data())
def test_each_event_is_recorded_once_over_repetitions_kills_and_lost_state(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("recorded")
    tellers = [AgentEvents("n1"), AgentEvents("n1", "run-2"), AgentEvents("n2")]
    reported = [
        teller.claimed(f"{teller.node}/{teller.run}/{number}", f"GPU-{number}")
        for teller in tellers
        for number in range(4)
    ]
    order = data.draw(st.permutations(reported))
    sent: list[SeenEvent] = []

    async def receive(boot: str, events: list[SeenEvent]) -> None:
        async with run_recorder(directory, boot, 1000, copy_records=4) as recording:
            for seen in events:
                # An agent sends again what another collector has acknowledged.
                await recording.receive(
                    *data.draw(st.lists(st.sampled_from([*sent, seen]), max_size=2))
                )
                await recording.receive(seen)
                sent.append(seen)
                if data.draw(st.booleans()):
                    first = recording.recorder.position.segment
                    await run_in_thread(recording.frames.delete_before, first)
            if data.draw(st.booleans()):
                await recording.recorded()
        # Stopped at any moment: what is stored is that of a kill.
        lost = data.draw(st.sampled_from([(), (DOCUMENT,), (DOCUMENT, POSITION)]))
        if lost:
            store = recording.recorder.audit.store
            store.open()
            with store.transaction() as connection:
                connection.executemany("DELETE FROM documents WHERE name = ?", [(n,) for n in lost])
            store.close()

    for number, begin in enumerate(range(0, len(order), 4)):
        asyncio.run(receive(f"b{number}", order[begin : begin + 4]))

    async def read() -> list[AuditRecord]:
        async with run_recorder(directory, "last") as recording:
            return await recording.recorded()

    found = asyncio.run(read())
    of_agents = [record.src for record in found if record.src.kind == "agent"]
    numbers = sorted((source.id, source.boot, source.n) for source in of_agents)
    assert numbers == sorted((t.node, t.run, n) for t in tellers for n in range(4))
    joined = [record.obj.node for record in found if record.type == "node.join"]
    assert sorted(joined) == ["n1", "n2"]
    assert verify_directory(directory / "log").findings == ()


async def test_a_name_of_a_person_is_only_committed_to(tmp_path: Path) -> None:
    teller = AgentEvents()
    reported = [
        teller.claimed("a", owner="zoe"),
        teller.claimed("b", owner="team-ns", source="kubernetes", compute="0-0"),
        teller.claimed("c", gpu="GPU-2", owner="zoe"),
    ]
    async with run_recorder(tmp_path) as recording:
        user, namespace, again = await recorded_events(recording, reported)
        raws = b"".join(recording.recorder.audit.records(0))
    assert b"zoe" not in raws
    assert "owner" not in user.data
    assert (
        user.pii["owner"]
        == again.pii["owner"]
        == PersonalSalts(tmp_path / "personal").find_commitment("zoe")
    )
    assert (namespace.data["owner"], namespace.pii) == ("team-ns", {})
