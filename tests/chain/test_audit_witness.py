"""Agents store checkpoints of the collector's audit log: over real HTTP, with restored and forked logs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from running_collector import RunningCollector, run_collector, settings_in
from support.audit import draft
from support.clock import ManualClock
from support.waiting import wait_until

from railscope.audit.cosignature import witness_key
from railscope.audit.signed_note import PublicKey
from railscope_agent.config import CollectorLink, WitnessSettings
from railscope_agent.sampling.shipping_stats import (
    CONFLICT,
    CONSISTENT,
    NO_CHECKPOINT,
    AuditLogState,
)
from railscope_agent.witness.audit_log_client import AuditLogClient, AuditLogUnavailableError
from railscope_agent.witness.audit_witness import AuditWitness
from railscope_agent.witness.witness_store import WitnessStore
from railscope_collector.audit import LogWriteError
from railscope_collector.audit.verification import VerifiedLog, verify_log
from railscope_collector.audit.verify_outcome import LogVerificationError, VerifyOutcome
from railscope_collector.config import AuditSettings, CollectorSettings
from railscope_collector.ledger.database import open_read_only


def witness_of(directory: Path, url: str, node: str = "n1", key: str = "") -> AuditWitness:
    """Return an agent's witness, as after each start."""
    link = CollectorLink(url=url, token=f"token-{node}", timeout_seconds=60)
    made = AuditWitness(
        WitnessSettings(log_key=key),
        node,
        AuditLogClient(link),
        WitnessStore(directory / node),
        ManualClock(),
        [],
        AuditLogState(),
    )
    made._open()  # noqa: SLF001 - as `run` does first
    return made


def waiting_for(directory: Path, agents: int, seconds: float = 3600) -> CollectorSettings:
    return settings_in(
        directory, audit=AuditSettings(required_witnesses=agents, witness_timeout_seconds=seconds)
    )


async def sign(one: RunningCollector, records: int = 1) -> None:
    """Append records, and sign the log."""
    log = one.collector.trail.log
    for number in range(records):
        await log.append(draft(number))
    await log.sign()


def verified(directory: Path, anchors: Sequence[str] = ()) -> VerifiedLog:
    state = directory / "state"
    key = PublicKey.parse((state / "audit.pub").read_text())
    with open_read_only(f"sqlite:///{state / 'ledger.sqlite'}") as transaction:
        return verify_log(transaction, key, anchors)


async def test_an_agent_follows_the_log_and_vouches_for_it(tmp_path: Path) -> None:
    async with run_collector(settings_in(tmp_path)) as running:
        witness = witness_of(tmp_path / "agents", running.url)
        for records in (1, 300, 0):
            await sign(running, records)
            size = running.collector.trail.log.signed.size
            await witness.check()
            # The collector records its credentials meanwhile.
            assert witness.state.state == CONSISTENT
            assert witness.state.records >= size
        (vouched,) = running.collector.audit.witness_api.witnesses.nodes.values()
        assert vouched.seconds() == witness.clock.now().wall_ns // 10**9
        assert vouched.note == witness.store.read_checkpoint()
        await witness.client.close()
    found = verified(tmp_path)
    assert [witness.node for witness in found.witnesses] == ["n1"]
    assert witness.events == []


async def test_a_log_that_was_put_back_is_seen_by_agents_and_signed_no_more(tmp_path: Path) -> None:
    """T6: a restore. The collector queries its agents, and one of them has a later checkpoint."""
    settings = waiting_for(tmp_path, agents=1)
    async with run_collector(settings_in(tmp_path)) as running:
        await sign(running, 5)
    shutil.copytree(tmp_path / "state", tmp_path / "backup")
    async with run_collector(settings_in(tmp_path)) as running:
        witness = witness_of(tmp_path / "agents", running.url)
        await sign(running, 5)
        await witness.check()
        held = witness.store.read_checkpoint()
        await witness.client.close()
    shutil.rmtree(tmp_path / "state")
    shutil.copytree(tmp_path / "backup", tmp_path / "state")

    async with run_collector(settings) as running:
        with pytest.raises(LogWriteError, match="0 of 1 agents have presented"):
            await sign(running)
        witness = witness_of(tmp_path / "agents", running.url)
        await witness.check()
        with pytest.raises(
            LogWriteError, match="n1 has a signed checkpoint that is missing in this log"
        ):
            await sign(running)
        await witness.client.close()
        assert running.collector.trail.log.waiting >= 2
    assert (witness.state.state, witness.store.read_checkpoint()) == (CONFLICT, held)
    (event,) = witness.events
    assert event.facts["kind"] == "rollback"
    (evidence,) = (tmp_path / "agents" / "n1" / "evidence").iterdir()
    assert (evidence / "held").read_text() == held
    with pytest.raises(LogVerificationError) as caught:
        verified(tmp_path, [held])
    assert caught.value.outcome == VerifyOutcome.FORKED

    async with run_collector(settings) as running:
        with pytest.raises(
            LogWriteError, match="has a signed checkpoint that is missing in this log"
        ):
            await sign(running)


async def test_a_log_that_forked_is_seen_by_agents(tmp_path: Path) -> None:
    async with run_collector(settings_in(tmp_path)) as running:
        await sign(running, 5)
    shutil.copytree(tmp_path / "state", tmp_path / "other")
    async with run_collector(settings_in(tmp_path)) as running:
        witness = witness_of(tmp_path / "agents", running.url)
        await sign(running, 5)
        await witness.check()
        await witness.client.close()
        size, held = running.collector.trail.log.signed.size, witness.state.records
    shutil.rmtree(tmp_path / "state")
    (tmp_path / "other").rename(tmp_path / "state")
    async with run_collector(settings_in(tmp_path)) as running:
        await sign(running, 50)
        assert running.collector.trail.log.signed.size > size
        witness = witness_of(tmp_path / "agents", running.url)
        for _ in range(3):
            await witness.check()
        with pytest.raises(LogWriteError, match=r"the first \d+ records differ"):
            await sign(running)
        await witness.client.close()
    assert [event.facts["kind"] for event in witness.events] == ["fork"]
    assert witness.state == AuditLogState(CONFLICT, held)


async def test_the_collector_signs_once_enough_agents_have_shown_what_they_hold(
    tmp_path: Path,
) -> None:
    async with run_collector(waiting_for(tmp_path, agents=2)) as running:
        log = running.collector.trail.log
        for node in ("n1", "n2"):
            assert log.signed.size == 0
            witness = witness_of(tmp_path / "agents", running.url, node)
            await witness.check()
            assert witness.state.state == NO_CHECKPOINT
            await witness.client.close()
        await wait_until(lambda: log.signed.size, "the log is signed")
    assert not verified(tmp_path).findings


async def test_a_node_cannot_cosign_for_another(tmp_path: Path) -> None:
    async with run_collector(settings_in(tmp_path)) as running:
        await sign(running)
        honest = witness_of(tmp_path / "agents", running.url, "n1")
        await honest.check()
        note, key = honest.store.read_checkpoint(), str(witness_key(honest.store.witness("n1")))
        other = AuditLogClient(CollectorLink(url=running.url, token="token-n2", timeout_seconds=60))  # noqa: S106 - a test's
        with pytest.raises(AuditLogUnavailableError, match="invalid name of the key"):
            await other.submit(note, key)
        assert list(running.collector.audit.witness_api.witnesses.nodes) == ["n1"]
        for client in (honest.client, other):
            await client.close()
