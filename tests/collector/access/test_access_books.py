"""Statements and exports of a real ledger, requested over HTTP: each tenant gets its own."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from running_collector import run_collector, settings_in, write_audit_log
from support.audit import verified_records
from support.books import ONE, TWO, books_with, claim, evidence_of, gpu, manager_after

from railscope.service import run_in_thread
from railscope_collector.access.credentials import Credential, Role, digest_token
from railscope_collector.access.tokens_file import quote_key, section_name
from railscope_collector.config import LedgerSettings
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.units import period_name
from railscope_collector.service import Collector
from railscope_collector.tables import metadata

TENANTS = ("imaging", "speech")
GPUS = {"imaging": "GPU-imaging-0", "speech": "GPU-speech-0"}
PERIOD = period_name(ONE)


def fill(directory: Path) -> None:
    """A ledger with a closed period, in which each tenant has had a GPU of its own."""
    (directory / "state").mkdir()
    known = evidence_of(*(gpu(GPUS[tenant], claim(tenant, 3, 30)) for tenant in TENANTS))
    ledger = Ledger.open(f"sqlite:///{directory / 'state' / 'ledger.sqlite'}", metadata)
    books_with(ledger, known).close(ONE, manager_after(ONE))
    ledger.close()


@asynccontextmanager
async def served(directory: Path, *, ledger: bool = True, url: str = "") -> AsyncIterator[Any]:
    """Send a request with a credential; return status and content."""
    if ledger:
        await run_in_thread(fill, directory)
    settings = settings_in(directory, ledger=LedgerSettings(url=url))
    holder = [Credential("x", Role.TENANT, tenant) for tenant in (*TENANTS, "idle")]
    holder += [Credential("x", role) for role in (Role.FINANCE, Role.OPERATOR)]
    lines = [
        f'[{section_name(one)}]\n{quote_key(one.name)} = "{digest_token(one.label)}"\n'
        for one in holder
    ]
    (directory / "tokens.toml").write_text("".join(lines))
    collector = Collector(settings)
    await write_audit_log(collector, [])
    runner = web.AppRunner(collector.application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/api/v1/"
    async with aiohttp.ClientSession() as session:

        async def ask(credential: Credential, path: str) -> tuple[int, str, str]:
            headers = {"Authorization": f"Bearer {credential.label}"}
            async with session.get(url + path, headers=headers) as answer:
                content = (await answer.read()).decode(errors="replace")
                return answer.status, content, answer.headers["Content-Type"]

        try:
            yield ask
        finally:
            await runner.cleanup()
            collector.database.close()


async def test_each_tenant_gets_its_own_statement_in_every_form(tmp_path: Path) -> None:
    async with served(tmp_path) as ask:
        for tenant, other in zip(TENANTS, reversed(TENANTS), strict=True):
            holder = Credential("x", Role.TENANT, tenant)
            for form in ("json", "text", "html", "csv"):
                status, content, media = await ask(
                    holder, f"statements/{tenant}/{PERIOD}?format={form}"
                )
                assert status == 200, content
                assert tenant in content
                assert other not in content, (form, "neither the name nor its GPU")
                assert media.startswith("text/" if form != "json" else "application/json")
            found = msgspec.json.decode((await ask(holder, f"statements/{tenant}/{PERIOD}"))[1])
            assert found["tenant"] == tenant
            assert {line["resource"] for line in found["lines"]} == {GPUS[tenant]}
            assert (await ask(holder, f"statements/{other}/{PERIOD}"))[0] == 403
            status, content, _ = await ask(holder, f"statements/{tenant}/{period_name(TWO)}")
            assert status == 404
            assert other not in content
        idle = Credential("x", Role.TENANT, "idle")
        status, content, _ = await ask(idle, f"statements/idle/{PERIOD}")
        assert (status, "imaging" in content, "speech" in content) == (404, False, False)


async def test_each_tenant_reads_its_own_invoices_only(tmp_path: Path) -> None:
    async with served(tmp_path) as ask:
        for tenant in TENANTS:
            status, content, _ = await ask(Credential("x", Role.TENANT, tenant), "statements")
            found = msgspec.json.decode(content)
            assert (status, found["forms"][0]) == (200, "json")
            assert [(one["tenant"], one["period"], one["void"]) for one in found["statements"]] == [
                (tenant, PERIOD, False)
            ]
        _, content, _ = await ask(Credential("x", Role.FINANCE), "statements")
        assert {one["tenant"] for one in msgspec.json.decode(content)["statements"]} == set(TENANTS)
        _, content, _ = await ask(Credential("x", Role.TENANT, "idle"), "statements")
        assert msgspec.json.decode(content)["statements"] == []


async def test_each_tenant_exports_its_own_rows_and_finance_all(tmp_path: Path) -> None:
    async with served(tmp_path) as ask:

        async def billed(credential: Credential, path: str) -> set[str]:
            status, content, _ = await ask(credential, path)
            assert status == 200, content
            return {row["SubAccountId"] for row in csv.DictReader(io.StringIO(content))}

        finance = Credential("x", Role.FINANCE)
        assert await billed(finance, f"exports/{PERIOD}?format=csv") == set(TENANTS)
        assert await billed(finance, f"exports/{PERIOD}?tenant=speech") == {"speech"}
        for tenant, other in zip(TENANTS, reversed(TENANTS), strict=True):
            holder = Credential("x", Role.TENANT, tenant)
            for path in (f"exports/{PERIOD}", f"exports/{PERIOD}?tenant={tenant}"):
                assert await billed(holder, path) == {tenant}
                assert other not in (await ask(holder, path))[1]
            assert (await ask(holder, f"exports/{PERIOD}?tenant={other}"))[0] == 403
        idle = Credential("x", Role.TENANT, "idle")
        assert (await ask(idle, f"exports/{PERIOD}"))[0] == 404
        assert (await ask(Credential("x", Role.OPERATOR), f"exports/{PERIOD}"))[0] == 403


async def test_a_provisional_statement_names_no_gpu_of_others(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    known = evidence_of(gpu(GPUS["imaging"], claim("imaging", 3, 30)), gpu(GPUS["speech"]))
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'state' / 'ledger.sqlite'}", metadata)
    books = books_with(ledger, known)
    late = evidence_of(*known.assembled.values(), gpu("GPU-speech-1"))
    type(books)(books.ledger, books.store, late).close(ONE, manager_after(ONE), provisional=True)
    ledger.close()
    async with served(tmp_path, ledger=False) as ask:
        holder = Credential("x", Role.TENANT, "imaging")
        for form in ("json", "text", "html", "csv"):
            status, content, _ = await ask(holder, f"statements/imaging/{PERIOD}?format={form}")
            assert status == 200
            assert "speech" not in content
            assert form == "csv" or "PROVISIONAL" in content


@pytest.mark.parametrize("path", ["statements/imaging/2026-01", "exports/2026-01"])
async def test_an_unavailable_ledger_is_reported(tmp_path: Path, path: str) -> None:
    away = f"sqlite:///{tmp_path}/nowhere/ledger.sqlite"
    async with served(tmp_path, ledger=False, url=away) as ask:
        status, content, _ = await ask(Credential("x", Role.FINANCE), path)
        assert (status, content) == (503, '{"error":"the ledger is unavailable"}')


async def test_an_export_is_in_the_audit_log_with_its_hash(tmp_path: Path) -> None:
    await run_in_thread(fill, tmp_path)
    settings = settings_in(tmp_path)
    (tmp_path / "tokens.toml").write_text(f'[tenants.imaging]\nv = "{digest_token("token-v")}"\n')
    async with run_collector(settings) as running:
        assert (await running.get(f"/api/v1/exports/{PERIOD}", token="token-v"))[0] == 200  # noqa: S106 - a test's token
    (found,) = [r for r in verified_records(tmp_path / "state") if r.type == "billing.export"]
    assert (found.data["tenant"], found.actor.id) == ("imaging", "tenant/imaging/v")
    assert len(str(found.data["sha256"])) == 64
