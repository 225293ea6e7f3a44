"""The OpenAPI document is valid, has the routes of the server, and describes its real answers."""

from __future__ import annotations

import asyncio
import re
import time
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from console_site import TOKENS, console, incident_at, report_nic
from running_collector import RunningCollector
from support import switch_readings
from support.demo_months import copy_demo_months

from railscope_collector.access.credentials import Role
from railscope_collector.billing import billing_demo
from railscope_collector.billing.billing_reader import BillingReader
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.config import DiagnosisSettings, IngestLimits
from railscope_collector.diagnosis.incident_table import IncidentTable
from railscope_collector.http import openapi
from railscope_collector.http.resources import RESOURCES, ROUTES
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.tables import metadata

DOCUMENT: dict[str, Any] = msgspec.json.decode(openapi.openapi_document(tuple(RESOURCES)))
PORT = switch_readings.port_name(1)
CLAIMS = "tenant,gpu,from,to,workload,share\nvision,n1,2026-01-01T00:00:00Z,,train,3/7\n"
PARTS = {
    "node": "n1", "switch": "leaf-07", "port": PORT, "incident": "I1", "tenant": "vision", "source": "file",
    "workload": "train", "period": "2026-09", "index": "0", "rail": "0", "runbook": "RailscopeIncident",
}  # fmt: skip


@pytest.mark.thorough
def test_the_document_is_valid() -> None:
    from openapi_spec_validator import validate  # noqa: PLC0415 - two seconds of each worker

    validate(DOCUMENT)


def test_the_document_has_each_route_of_the_server() -> None:
    of_api = {route.path for route in ROUTES if route.path.startswith("/api/v1/")}
    assert set(DOCUMENT["paths"]) == of_api
    for path, methods in DOCUMENT["paths"].items():
        (operation,) = methods.values()
        named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path))
        assert {"200", "401", "403", "503"} <= operation["responses"].keys()


def test_a_query_has_its_bounds_and_values() -> None:
    parameters = DOCUMENT["paths"]["/api/v1/gpus"]["get"]["parameters"]
    found = {each["name"]: each["schema"] for each in parameters}
    assert (found["limit"]["minimum"], found["limit"]["maximum"]) == (1, 1000)
    assert found["limit"]["default"] == 100
    assert set(found["state"]["enum"]) == {"", "failed", "degraded", "unknown", "healthy"}
    incidents = DOCUMENT["paths"]["/api/v1/incidents"]["get"]["parameters"]
    (severity,) = (each for each in incidents if each["name"] == "severity")
    assert severity["schema"]["items"]["enum"] == ["all", "critical", "info", "warning"]


def check(path: str, status: int, text: str) -> None:
    """Compare an answer with its description; the components are found by their references."""
    import jsonschema  # noqa: PLC0415 - two seconds of each worker

    responses = DOCUMENT["paths"][path]["get"]["responses"]
    described = responses[str(status)]["content"]
    is_json = "application/json" in described and not path.startswith("/api/v1/exports/")
    if is_json or status != 200:
        schema = described["application/json"]["schema"] | {"components": DOCUMENT["components"]}
        jsonschema.Draft202012Validator(schema).validate(msgspec.json.decode(text))


@pytest.mark.parametrize(
    "role",
    [
        Role.AUDITOR,
        *(pytest.param(each, marks=pytest.mark.thorough) for each in (Role.TENANT, Role.OPERATOR)),
    ],
)
async def test_answers_are_as_described(tmp_path: Path, demo_months: Path, role: Role) -> None:
    ledger = Ledger.open(copy_demo_months(demo_months, tmp_path / "months.sqlite"), metadata)
    reader = BillingReader(BillingBooks.for_ledger(ledger), lambda _: billing_demo.SELLER)
    (tmp_path / "claims.csv").write_text(CLAIMS)

    def prepare(running: RunningCollector) -> None:
        switch_readings.configure(running, "leaf-07")

    settings: dict[str, Any] = {
        "claims_file": str(tmp_path / "claims.csv"),
        "limits": IngestLimits(),
        "diagnosis": DiagnosisSettings(enabled=False),
    }
    async with console(tmp_path, prepare, lambda: reader, **settings) as running:
        collector = running.collector
        for seconds_ago, grown in ((60, 0), (0, 1000)):
            reading = switch_readings.reading("leaf-07", 2, grown)
            await switch_readings.poll(running, "leaf-07", reading, seconds_ago)
        await report_nic(running, (1000, 990), PORT)
        await collector.trail.log.sign()
        found = incident_at("n1", 0, victims=["n1"])
        collector.diagnosis.table = IncidentTable(time.time_ns(), (found,))
        while not (await running.json("/api/v1/jobs", TOKENS[Role.AUDITOR]))["rows"]:
            await collector.refresher.refresh()
            await asyncio.sleep(0)
        statuses = {}
        for path in DOCUMENT["paths"]:
            target = path.format_map({name: quote(text, safe="") for name, text in PARTS.items()})
            statuses[path], text = await running.get(target, TOKENS[role])
            check(path, statuses[path], text)
            unknown = path.format_map(dict.fromkeys(PARTS, "%22%3Cunknown"))
            check(path, *await running.get(unknown, TOKENS[role]))
        consistency = "/api/v1/audit/consistency"
        status, text = await running.get(f"{consistency}?old=1000000", TOKENS[role])
        assert status == HTTPStatus.NOT_FOUND
        check(consistency, status, text)
    refused = {path for path, status in statuses.items() if status != 200}
    if role is Role.AUDITOR:
        assert not refused
    assert len(statuses) - len(refused) > 10
    ledger.close()
