"""Every page in a real browser: as each role, in both themes, without scripts, at 390 px, with hostile names."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest
import pytest_asyncio
from console_site import TOKENS, incident_at, report_nic, tokens_text
from makers import FrameSender, gpu_schema
from running_collector import RunningCollector, run_collector, settings_in
from support import switch_readings
from support.browser import Visitor, visiting
from support.demo_months import copy_demo_months
from support.waiting import wait_until

from railscope_collector.access.credentials import Role, digest_token
from railscope_collector.billing import billing_demo
from railscope_collector.billing.billing_reader import BillingReader
from railscope_collector.billing.period_closing import BillingBooks
from railscope_collector.config import DiagnosisSettings, IngestLimits, SwitchesSettings
from railscope_collector.console.page_table import PAGES, Page
from railscope_collector.diagnosis.incident_table import IncidentTable
from railscope_collector.http.signed_entries import EntrySelection
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.switches.switch_reading import MAX_PORTS
from railscope_collector.tables import metadata

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = pytest.mark.asyncio(loop_scope="session")

HOSTILE = "<img src=x onerror=alert(1)>&lt;{{7*7}}"
READERS = (Role.OPERATOR, Role.FINANCE, Role.AUDITOR, Role.TENANT)
PARTS = {
    "node": "n1", "gpu": "GPU-n1-0", "rail": "0", "incident": "I1", "tenant": "vision", "source": "file",
    "workload": HOSTILE, "period": "2026-09", "runbook": "RailscopeIncident",
    "switch": "leaf-07", "port": switch_readings.port_name(511),
}  # fmt: skip
CLAIMS = f"""tenant,gpu,from,to,workload
vision,n1,2026-01-01T00:00:00Z,,"{HOSTILE}"
"{HOSTILE}",n2,2026-01-01T00:00:00Z,,
"""
COMMANDS = ["ssh n1 ethtool eth0", "scontrol update nodename=n1 state=resume"]
QUOTAS = "tenant,gpu_hours,period,gpus,from,to\nvision,40.5,month,32,2020-01-01T00:00:00Z,\n"


@dataclass
class VisitedSite:
    """A running collector, and a visitor of each role."""

    running: RunningCollector
    visitors: dict[Role, Visitor]
    own_record: int
    """A record that names only the tenant."""

    def path_of(self, page: Page, **parts: str) -> str:
        index = "0" if page.name == "gpu" else str(self.own_record)
        known = PARTS | {"index": index} | parts
        return page.path.format(**{name: quote(text, safe="") for name, text in known.items()})


def incidents() -> IncidentTable:
    found = [
        incident_at(
            "n1",
            0,
            number="I1",
            victims=["n2"],
            severity="critical",
            text=HOSTILE,
            commands=[
                {"step": "check", "commands": COMMANDS[:1]},
                {"step": "resume", "commands": COMMANDS[1:], "comment": HOSTILE},
            ],
        ),
        incident_at(HOSTILE, 1, number="I2", action=HOSTILE),
    ]
    found[0] = replace(found[0], tenant_nodes={"vision": frozenset({"n1"})})
    return IncidentTable(found[0].onset_ns, tuple(found))


async def send_frames(running: RunningCollector, node: str, at: int = 0) -> None:
    sender = FrameSender(node)
    frames = sender.frames(gpu_schema(node), [[50, 60, 1000, 2000, 10, 20]] * 3, at=at)
    headers = {"Authorization": f"Bearer token-{quote(node)}"}
    body = sender.body(frames, schemas=True)
    status, reply = await running.post(body, node=node, at=at + 4, headers=headers)
    assert status == 200, reply


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def site(
    chromium: Browser, demo_months: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VisitedSite]:
    directory = tmp_path_factory.mktemp("site")
    (directory / "claims.csv").write_text(CLAIMS)
    (directory / "quotas.csv").write_text(QUOTAS)
    cabling = [f"leaf-07,{switch_readings.port_name(n)},n1,eth{n}\n" for n in range(1, MAX_PORTS)]
    (directory / "cabling.csv").write_text("switch,port,node,interface\n" + "".join(cabling))
    settings = settings_in(
        directory,
        claims_file=str(directory / "claims.csv"),
        quotas_file=str(directory / "quotas.csv"),
        diagnosis=DiagnosisSettings(enabled=False),
        limits=IngestLimits(),
        # The content does not change while the pages are visited.
        view_refresh_seconds=3600,
        stale_seconds=36_000,
        switches=SwitchesSettings(cabling_file=str(directory / "cabling.csv")),
    )
    nodes = [
        f'"{name}" = "{digest_token(f"token-{quote(name)}")}"' for name in ("n1", "n2", HOSTILE)
    ]
    tokens = tokens_text(Role.NODE).replace("[nodes]", "\n".join(["[nodes]", *nodes]))
    (directory / "tokens.toml").write_text(tokens)
    ledger = Ledger.open(copy_demo_months(demo_months, directory / "months.sqlite"), metadata)
    reader = BillingReader(BillingBooks.for_ledger(ledger), lambda _: billing_demo.SELLER)

    def prepare(running: RunningCollector) -> None:
        switch_readings.configure(running, "leaf-07", "leaf-08")

    async with AsyncExitStack() as stack:
        stack.callback(ledger.close)
        running = await stack.enter_async_context(
            run_collector(settings, prepare, billing=lambda: reader)
        )
        for node in ("n1", "n2", HOSTILE):
            await send_frames(running, node)
        # The cabling file differs: it names n1.
        token = f"token-{quote(HOSTILE)}"
        await report_nic(running, (9, 9), PARTS["port"], HOSTILE, token)
        for seconds_ago in (60, 0):
            found = switch_readings.reading("leaf-07", MAX_PORTS, 60 - seconds_ago, "", HOSTILE)
            await switch_readings.poll(running, "leaf-07", found, seconds_ago)
        running.collector.diagnosis.table = incidents()
        await running.collector.refresher.refresh()
        visitors = {}
        for role in READERS:
            visitors[role] = await stack.enter_async_context(visiting(chromium, running.url))
            await visitors[role].sign_in(TOKENS[role])
        yield VisitedSite(running, visitors, await find_own_record(running))


async def find_own_record(running: RunningCollector) -> int:
    """The first record that names the tenant only: that it has signed in."""
    collector = running.collector

    async def indices() -> list[int]:
        await collector.trail.log.sign()
        found = collector.entries.select(EntrySelection(0, 1, "vision")).entries
        return [entry.index for entry in found]

    (index,) = await wait_until(indices, "the sign-in is in the log")
    return int(index)


@pytest.mark.parametrize("is_plain", [False, pytest.param(True, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
async def test_a_page_has_no_problems_for_an_auditor(
    site: VisitedSite, page: Page, *, is_plain: bool
) -> None:
    visited = await site.visitors[Role.AUDITOR].visit(site.path_of(page), is_plain=is_plain)
    assert page.title.partition(" ")[0] in visited.text
    assert len(visited.text_without_scripts) > 0.8 * len(visited.text)


def names_of_others(text: str) -> list[str]:
    """Return the names of others in a text; a hash in Base64 may contain their letters between others."""
    return re.findall(r"\b(?:language\b|n2\b|GPU-n2\b|operator/|I2\b)", text)


async def test_hostile_names_are_text(site: VisitedSite) -> None:
    auditor = site.visitors[Role.AUDITOR]
    for path in (
        "/",
        "/nodes",
        f"/tenants/{quote(HOSTILE, safe='')}",
        "/tenants/vision",
        "/tenants",
        "/switches/leaf-07",
    ):
        await auditor.open(path)
        assert HOSTILE in await auditor.page.inner_text("main"), path
        assert await auditor.page.locator("main img, main script").count() == 0, path


async def test_the_keyboard_reaches_all_in_order(site: VisitedSite) -> None:
    tenant = site.visitors[Role.TENANT]
    await tenant.open("/tenants/vision")
    menu = [page.title for page in PAGES if page.in_menu and page.admits(Role.TENANT)]
    names = await tenant.tab_order()
    expected = ["Skip to content", "Railscope", *menu, "Search", "Sign out"]
    assert names[: len(expected)] == expected
    await tenant.open("/tenants/vision")
    await tenant.page.keyboard.press("Tab")
    await tenant.page.keyboard.press("Enter")
    assert await tenant.page.evaluate("() => document.activeElement.id") == "main"


async def test_a_slash_moves_to_the_search_which_finds_all_that_a_reader_may_see(
    site: VisitedSite,
) -> None:
    auditor, tenant = site.visitors[Role.AUDITOR], site.visitors[Role.TENANT]
    await auditor.open("/nodes")
    await auditor.page.keyboard.press("/")
    await auditor.page.keyboard.type("N1")
    await auditor.page.keyboard.press("Enter")
    await auditor.page.wait_for_url("**/search?q=N1")
    text = await auditor.page.inner_text("main")
    assert "n1 GPU GPU-n1-0" in text or "n1 GPU 0" in text
    assert await auditor.page.locator('main a[href="/nodes/n1"]').count() == 1
    assert await auditor.page.locator('main a[href="/incidents/I1"]').count() == 1
    await auditor.visit(f"/search?q={quote(HOSTILE, safe='')}")
    await tenant.open("/search?q=n")
    text = await tenant.page.inner_text("main")
    assert not names_of_others(text)
    assert "GPU-n1-0" in text
    assert "Search" in (await site.visitors[Role.FINANCE].visit("/search")).text


async def test_a_button_copies_one_command_of_an_incident(site: VisitedSite) -> None:
    operator = site.visitors[Role.OPERATOR]
    await operator.open("/incidents/I1")
    assert await operator.page.locator(".commands code").all_inner_texts() == COMMANDS
    await operator.page.click("button.copy")
    await operator.page.wait_for_function(
        "() => ['Copied', 'Press Ctrl+C'].includes(document.querySelector('button.copy').textContent)"
    )
    await operator.page.keyboard.press("Control+C")
    await operator.page.focus("#search")
    await operator.page.keyboard.press("Control+V")
    # One command, not all: a shell would run what follows without waiting for the jobs to end.
    assert await operator.page.input_value("#search") == COMMANDS[0]


async def test_polling_replaces_parts_and_keeps_focus_and_open_disclosures(
    site: VisitedSite,
) -> None:
    operator, diagnosis = site.visitors[Role.OPERATOR], site.running.collector.diagnosis
    page = operator.page
    await operator.open("/incidents/I1")
    await page.focus("#all-victims > summary")
    await page.keyboard.press("Enter")
    heading = await page.query_selector("h1")
    before = diagnosis.table
    try:
        more = incident_at("n1", 0, number="I1", victims=["n2", "n3"], severity="critical")
        diagnosis.table = IncidentTable(before.timestamp_ns + 1, (more, *before.incidents[1:]))
        await page.evaluate("() => document.dispatchEvent(new Event('visibilitychange'))")
        await page.get_by_text("2 NICs", exact=True).wait_for()
    finally:
        diagnosis.table = IncidentTable(before.timestamp_ns + 2, before.incidents)
    assert await page.get_attribute("#all-victims", "open") == ""
    assert (
        await page.evaluate("() => document.activeElement.closest('details')?.id") == "all-victims"
    )
    assert await heading.evaluate("element => element.isConnected"), "other parts stay"


async def test_a_person_signs_in_and_reads_with_scripts_off(
    site: VisitedSite, chromium: Browser
) -> None:
    context = await chromium.new_context(java_script_enabled=False)
    page = await context.new_page()
    try:
        await page.goto(f"{site.running.url}/nodes?state=failed")
        await page.fill("input[name=token]", TOKENS[Role.OPERATOR])
        await page.press("input[name=token]", "Enter")
        await page.wait_for_url("**/nodes?state=failed")
        assert "Nodes" in await page.inner_text("h1")
        await page.click("text=Sign out")
        await page.wait_for_url("**/sign-in")
    finally:
        await context.close()
