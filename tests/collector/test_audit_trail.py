"""Audit records of a running collector: its life and its denials."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from makers import FrameSender, gpu_schema
from running_collector import run_collector, settings_in
from support.audit import NOON_NS, audit_log, verified_records
from support.audit_keys import load_or_create_key
from support.disk import small_file_system

from railscope import settings
from railscope.audit.record import AuditRecord
from railscope.settings import SettingsError
from railscope_collector.audit.audit_trail import MAX_DENIED, AuditTrail, DeniedRequest
from railscope_collector.config import PREFIX, CollectorSettings


async def denied(directory: Path, denials: list[DeniedRequest]) -> list[AuditRecord]:
    """Records of these denials, which arrive in one minute."""
    trail = AuditTrail(audit_log(directory), "1.0", lambda: NOON_NS)
    trail.open()
    task = asyncio.create_task(trail.run())
    await asyncio.sleep(0)
    for denial in denials:
        trail.record_denial(denial)
    while trail.log.size < 3:  # noqa: ASYNC110 - the log has no event for tests
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    trail.log.close()
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


async def test_two_behind_one_address_are_both_named(tmp_path: Path) -> None:
    one, other = (DeniedRequest("10.0.0.2", "/v1/frames", "node", name) for name in ("n1", "n2"))
    found = await denied(tmp_path, [one, other, other, one, one])
    assert [(r.actor.id, r.data["count"]) for r in found] == [
        ("n1", 1),
        ("n2", 1),
        ("n1", 2),
        ("n2", 1),
    ]


async def test_a_sender_keeps_its_name_after_many_paths(tmp_path: Path) -> None:
    flood = [DeniedRequest("2001:db8::1", f"/{n}", "token") for n in range(3 * MAX_DENIED)]
    found = await denied(tmp_path, [*flood, DeniedRequest("10.0.0.9", "/metrics", "token")])
    counts: dict[str, int] = {}
    for record in found:
        assert isinstance(record.data["count"], int)
        counts[record.actor.ip] = counts.get(record.actor.ip, 0) + record.data["count"]
    assert counts == {"2001:db8::1": len(flood), "10.0.0.9": 1}
    assert len(found) < MAX_DENIED


async def test_stopping_in_the_middle_of_a_minutes_counts_loses_none(tmp_path: Path) -> None:
    trail = AuditTrail(audit_log(tmp_path), "1.0", lambda: NOON_NS)
    trail.open()
    writer = asyncio.create_task(trail.log.run())
    for n in range(2 * 20):
        trail.record_denial(DeniedRequest(f"10.0.0.{n % 20}", "/", "token"))
    minute = asyncio.create_task(trail._write_repeated())  # noqa: SLF001
    while trail.log.size < 2 + 20 + 3:  # noqa: ASYNC110 - the log has no event for tests
        await asyncio.sleep(0)
    minute.cancel()
    await asyncio.gather(minute, return_exceptions=True)
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)
    size = trail.log.size
    await trail._write_repeated()  # noqa: SLF001 - as it does when it is stopped
    assert size + trail.lost_records == 2 + 20 + 20
    trail.log.close()


@pytest.mark.parametrize("steps", range(12))
async def test_stopping_while_a_record_is_lost_stops(tmp_path: Path, steps: int) -> None:
    instants = iter([NOON_NS, NOON_NS])
    trail = AuditTrail(audit_log(tmp_path), "1.0", lambda: next(instants, -1))
    trail.open()
    task = asyncio.create_task(trail.run())
    await asyncio.sleep(0)
    trail.record_denial(DeniedRequest("10.0.0.1", "/", "token"))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=60)
    assert task.cancelled()
    trail.log.close()
    assert (trail.log.size, trail.lost_records) == (2, 2)


async def test_a_denial_after_the_end_is_counted_as_lost(tmp_path: Path) -> None:
    trail = AuditTrail(audit_log(tmp_path), "1.0", lambda: NOON_NS)
    trail.open()
    task = asyncio.create_task(trail.run())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    trail.record_denial(DeniedRequest("10.0.0.1", "/", "token"))
    trail.log.close()
    assert (trail.denials, trail.lost_records) == (1, 1)


async def test_a_crowd_of_senders_is_counted_whole(tmp_path: Path) -> None:
    crowd = [
        DeniedRequest(f"10.0.{n // 256}.{n % 256}", "/", "token") for n in range(MAX_DENIED + 50)
    ]
    found = await denied(tmp_path, crowd)
    assert len(found) == MAX_DENIED + 1
    counts = [record.data["count"] for record in found]
    assert sum(count for count in counts if isinstance(count, int)) == len(crowd)


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
    found = list(verified_records(tmp_path / "state" / "audit"))
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
    found = list(verified_records(tmp_path / "state" / "audit"))
    life = [record.type for record in found if not record.type.startswith("identity.")]
    assert life == ["log.genesis", *["admin.config"] * 4]
    enrolled = [record.type for record in found if record.type.startswith("identity.")]
    assert enrolled == ["identity.enrol_approve"] * 4, "once, not at each start"
    assert len({record.src.boot for record in found}) == 2


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


def test_a_collector_does_not_continue_a_log_that_was_changed(tmp_path: Path) -> None:
    trail = AuditTrail(audit_log(tmp_path), "1.0")
    (tmp_path / "checkpoint").write_text("nonsense")
    with pytest.raises(SettingsError, match=r"move .* away and keep it"):
        trail.open()
    assert not (tmp_path / "key.pub").exists()


def test_a_full_disk_is_one_clear_line_at_the_start(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "disk", 64) as disk:
        with pytest.raises(OSError, match="space"):
            (disk / "much").write_bytes(bytes(1 << 20))
        trail = AuditTrail(audit_log(disk / "audit"), "1.0", lambda: NOON_NS)
        with pytest.raises(SettingsError, match=r"cannot write the audit log .*: No space left"):
            trail.open()
        trail.log.close()
        (disk / "much").unlink()
        again = AuditTrail(audit_log(disk / "audit"), "1.0", lambda: NOON_NS)
        again.open()
        assert again.log.size == 2
        again.log.close()


def test_the_settings_reject_a_name_that_no_key_can_have(tmp_path: Path) -> None:
    file = tmp_path / "collector.toml"
    file.write_text('[audit]\norigin = "a b"\n')
    with pytest.raises(SettingsError, match="origin"):
        settings.load(CollectorSettings, file=file, prefix=PREFIX)
