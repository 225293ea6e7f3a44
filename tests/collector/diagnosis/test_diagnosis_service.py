"""The collector takes the lines of its diagnosis, and saves decisions itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from support.audit import audit_log
from support.incidents import incident as reported_incident
from support.schemas import schemas_in

from railscope.audit.record import decode_audit_record
from railscope_collector.audit.audit_trail import AuditTrail
from railscope_collector.diagnosis.incident_table import (
    ChangeRecord,
    DiagnosisLine,
    DiagnosisState,
)
from railscope_collector.live_diagnosis.diagnosis_service import (
    NOTHING_SENT,
    DiagnosisService,
)
from railscope_collector.state.collector_state import CollectorState

NOW_NS = 1_790_000_000_000_000_000


def service_in(directory: Path) -> DiagnosisService:
    core = CollectorState(schemas_in(directory))
    trail = AuditTrail(audit_log(directory / "audit"), "1.0", lambda: NOW_NS)
    service = DiagnosisService(core, directory / "diagnosis", trail, lambda: NOW_NS, tuple)
    service.open()
    return service


@asynccontextmanager
async def recording(service: DiagnosisService) -> AsyncIterator[None]:
    service.trail.log.store.open()
    service.trail.open()
    task = asyncio.create_task(service.trail.log.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def line(**members: object) -> bytes:
    return msgspec.json.encode(DiagnosisLine(**members))  # type: ignore[arg-type]


def change(sequence: int, incident: str = "i1", kind: str = "opened") -> DiagnosisLine:
    facts = {"class": "gpu_lost", "node": "n1", "severity": "critical"}
    found = ChangeRecord(
        sequence=sequence, incident=incident, kind=kind, timestamp_ns=NOW_NS, facts=facts, gpu="G"
    )
    return DiagnosisLine(change=found)


def recorded(service: DiagnosisService) -> Counter[object]:
    log = service.trail.log
    records = map(decode_audit_record, [*log.records(0), *log.waiting_records()])
    return Counter(each.data["incident"] for each in records if "incident" in each.data)


async def test_a_change_that_is_sent_again_is_acknowledged_and_not_recorded_again(
    tmp_path: Path,
) -> None:
    service = service_in(tmp_path)
    async with recording(service):
        service.receive(msgspec.json.encode(change(1)))
        await service.record_changes()
        service.receive(msgspec.json.encode(change(1)))
        service.receive(msgspec.json.encode(change(2, "i2")))
        await service.record_changes()
        _, message = await service.next_message(NOTHING_SENT)
        assert message.acknowledged == 2
    assert recorded(service) == {"i1": 1, "i2": 1}
    (record, _) = [
        each
        for each in map(decode_audit_record, service.trail.log.records(0))
        if "incident" in each.data
    ]
    assert (record.obj.node, record.obj.gpu) == ("n1", "G")
    names = [each.event.name for each in service.core.events]
    assert names == ["incident_opened"] * 2


def test_the_table_is_that_of_the_last_state(tmp_path: Path) -> None:
    service = service_in(tmp_path)
    first, second = reported_incident("a"), reported_incident("b")
    for each in (first, second):
        service.receive(line(incident=each))
    assert service.table.incidents == ()
    service.receive(
        line(state=DiagnosisState(timestamp_ns=7, incidents=["b", "a"], opened={"pfc_storm": 2}))
    )
    table = service.table
    assert [each.document for each in table.incidents] == [second.document, first.document]
    assert (table.timestamp_ns, table.opened) == (7, {"pfc_storm": 2})
    service.decisions.notified |= {"a": "resolved", "b": "resolved"}
    service.receive(line(state=DiagnosisState(timestamp_ns=8, incidents=["b"])))
    assert [each.document.id for each in service.table.incidents] == ["b"]
    assert service.decisions.notified == {"b": "resolved"}
    service.receive(b'{"incident":{"document":{"id":"c"}}}')
    service.decisions.notified["c"] = "resolved"
    service.receive(line(state=DiagnosisState(timestamp_ns=9, incidents=["b", "c"])))
    assert service.table.unread == {"c"}
    assert service.decisions.notified == {"b": "resolved", "c": "resolved"}


@pytest.mark.parametrize("content", [b"", b"{", b'{"state":{}}', b'{"incident":7}', b"\xff\n"])
def test_an_invalid_line_is_counted(tmp_path: Path, content: bytes) -> None:
    service = service_in(tmp_path)
    service.receive(content)
    assert service.invalid_lines == 1


def test_notifications_survive_a_restart(tmp_path: Path) -> None:
    service = service_in(tmp_path)
    service.decisions.notified["a"] = "firing critical"
    service.save_decisions()
    assert service_in(tmp_path).decisions == service.decisions


def test_damaged_decisions_are_set_aside(tmp_path: Path) -> None:
    (tmp_path / "diagnosis").mkdir()
    (tmp_path / "diagnosis" / "decisions").write_bytes(b"\xc1")
    assert service_in(tmp_path).decisions.notified == {}
    assert (tmp_path / "diagnosis" / "decisions.damaged").exists()
