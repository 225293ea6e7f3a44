"""Audit records of a running collector: its life and its denials."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from makers import FrameSender, gpu_schema
from running_collector import run_collector, settings_in
from sqlalchemy import text
from support.audit import NOON_NS, audit_log, database_in, verified_records
from support.audit_keys import load_or_create_key
from support.waiting import wait_until

from railscope.audit.record import AuditRecord
from railscope.settings import SettingsError
from railscope_collector.audit.audit_trail import AuditTrail, DeniedRequest


async def denied(directory: Path, denials: list[DeniedRequest]) -> list[AuditRecord]:
    """Records of these denials, which arrive in one minute."""
    trail = AuditTrail(audit_log(directory), "1.0", lambda: NOON_NS)
    trail.log.store.open()
    trail.open()
    task = asyncio.create_task(trail.run())
    await asyncio.sleep(0)
    for denial in denials:
        trail.record_denial(denial)
    await wait_until(lambda: trail.log.size >= 3, "the denials are in the log", every=0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    trail.log.store.close()
    assert trail.denials == len(denials)
    return [record for record in verified_records(directory) if record.type == "access.denied"]


async def test_repeated_denials_are_one_record_and_a_count(tmp_path: Path) -> None:
    often, once = (
        DeniedRequest("10.0.0.1", "/metrics", "token"),
        DeniedRequest("10.0.0.2", "/v1/x", "node", "n1"),
    )
    found = await denied(tmp_path, [often, once, often, often])
    assert [(r.actor.ip, r.actor.id, r.data["count"], r.out) for r in found] == [
        ("10.0.0.1", "", 1, "denied"),
        ("10.0.0.2", "n1", 1, "denied"),
        ("10.0.0.1", "", 2, "denied"),
    ]


async def test_a_collector_records_its_life_and_its_denials(tmp_path: Path) -> None:
    sender, unknown = FrameSender("n2"), "of nobody"
    async with run_collector(settings_in(tmp_path)) as running:
        assert (await running.get("/metrics", token=unknown))[0] == 401
        assert (await running.get("/api/v1/nodes?x=%C3%28", token=unknown))[0] == 401
        frames = sender.frames(gpu_schema("n2"), [[50, 60, 1000, 2000, 10, 20]], at=0)
        body = sender.body(frames, schemas=True)
        assert (await running.post(body, node="n2", headers={"Authorization": ""}, at=2))[0] == 401
        assert (await running.post(body, node="n1", at=2))[0] == 403
        page = (await running.get("/metrics"))[1]
        assert "railscope_audit_denials_total 4" in page.splitlines()
        assert "railscope_audit_lost_records_total 0" in page.splitlines()
    found = list(verified_records(tmp_path / "state"))
    life = [record.type for record in found if record.type.startswith(("log.", "admin."))]
    assert life == ["log.genesis", "admin.config", "admin.config"]
    denials = [record for record in found if record.type == "access.denied"]
    assert [(r.data["path"], r.data["reason"], r.actor.id) for r in denials] == [
        ("/metrics", "unknown token", ""),
        ("/api/v1/nodes", "unknown token", ""),
        ("/v1/frames", "unknown token", ""),
        ("/v1/frames", "node", "node/n1"),
    ]


async def test_a_restarted_collector_continues_the_log(tmp_path: Path) -> None:
    for _ in range(2):
        async with run_collector(settings_in(tmp_path)):
            pass
    found = list(verified_records(tmp_path / "state"))
    life = [record.type for record in found if not record.type.startswith("identity.")]
    assert life == ["log.genesis", *["admin.config"] * 4]
    enrolled = [record.type for record in found if record.type.startswith("identity.")]
    assert enrolled == ["identity.enrol_approve"] * 4, "once, not at each start"
    assert len({record.src.boot for record in found[1:]}) == 2


def test_the_key_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "audit.key"
    made = load_or_create_key(path, "log.example")
    assert path.stat().st_mode & 0o777 == 0o600
    assert (
        load_or_create_key(path, "other.example").public.name == made.public.name == "log.example"
    )
    path.write_text("PRIVATE+KEY+nonsense\n")
    with pytest.raises(SettingsError, match="cannot use"):
        load_or_create_key(path, "log.example")


async def test_a_collector_does_not_continue_a_log_that_was_changed(tmp_path: Path) -> None:
    async with run_collector(settings_in(tmp_path)):
        pass
    with database_in(tmp_path / "state") as database, database.transaction(writes=True) as changed:
        changed.execute(text("UPDATE audit_head SET note = 'nonsense'"))
    with pytest.raises(SettingsError, match=r"move the file of its key away and keep it"):
        async with run_collector(settings_in(tmp_path)):
            pass
