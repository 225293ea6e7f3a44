"""Comparison of the data that any credential can obtain, over all paths, with a five-line model."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
from aiohttp import web
from hypothesis import given, strategies as st
from running_collector import settings_in, write_audit_log
from support import examples
from support.billing_port import BookedRows
from support.examples import fewer_examples

from railscope.audit.record import RecordActor, RecordData, RecordSubject
from railscope.catalog import account as account_catalog, collector as catalog, rollups
from railscope.claim_terms import GPU_CAPACITY
from railscope.wire import WireEntity, WireEvent
from railscope_collector.access.credentials import Credential, Role, digest_token
from railscope_collector.access.tokens_file import quote_key, section_name
from railscope_collector.account.account_sums import GpuTimeAccount, TimeKey
from railscope_collector.fleet.recent_events import SeenEvent
from railscope_collector.fleet.view_cells import View, ViewCell
from railscope_collector.ledger.record_draft import RecordDraft
from railscope_collector.metering.slot_state import SlotState
from railscope_collector.service import Collector
from railscope_collector.view_refresh import CollectorViews
from railscope_collector.workloads.job_roster import JobHolding, JobKey, JobRoster
from railscope_collector.workloads.job_view import RunningJobs

NOON_NS = 1_790_000_000_000_000_000
PERIODS = ("2026-01", "2026-02")
FIRST = 300_000_000
A_RAIL = next(d.metric for d in rollups().values() if d.metric.about.labels == ("rail",))
A_TENANT = next(d.metric for d in rollups().values() if d.metric.about.labels == ("tenant",))
A_CLUSTER = next(d.metric for d in rollups().values() if d.metric.about.labels == ())


@dataclass(frozen=True)
class TenantFact:
    """A number that is unique in the cluster, of one tenant, of several, or of none."""

    number: int
    kind: str
    of: frozenset[str] = frozenset()


def visible(fact: TenantFact, holder: Credential) -> bool:
    """The model."""
    if holder.role is Role.TENANT:
        return fact.of == {holder.tenant}
    operator = fact.kind in {"cluster", "use", "job"}
    finance = fact.kind in {"use in the API", "account", "use", "invoice"}
    return {Role.AUDITOR: True, Role.OPERATOR: operator, Role.FINANCE: finance}.get(
        holder.role, False
    )


@dataclass
class RandomCluster:
    """A cluster of random facts, each in all places that expose such a fact."""

    tenants: list[str]
    nodes: list[str]
    draw: st.DrawFn
    facts: list[TenantFact] = field(default_factory=list)
    cells: dict[str, list[ViewCell]] = field(default_factory=lambda: {"tenant": [], "node": []})
    booked: dict[tuple[str, str], list[tuple[str, int]]] = field(default_factory=dict)
    drafts: list[RecordDraft] = field(default_factory=list)
    events: list[SeenEvent] = field(default_factory=list)
    roster: JobRoster = field(default_factory=JobRoster)
    _numbers: Iterator[int] = field(default_factory=lambda: count(FIRST))

    def __post_init__(self) -> None:
        self.sums: dict[TimeKey, int] = {}
        for tenant in self.tenants:
            self._uses(tenant)
        self.cells["cluster"] = [ViewCell(A_CLUSTER, (), self._fact("cluster"))]
        self.cells["rail"] = [ViewCell(A_RAIL, ("0",), self._fact("cluster"))]
        for node in self.nodes:
            self.cells["node"].append(ViewCell(catalog.NODE_AGE, (node,), self._fact("cluster")))
            facts = {
                "tenant": self.draw(st.sampled_from(self.tenants)),
                "x": str(self._fact("cluster")),
            }
            event = WireEvent("claim_start", 0, WireEntity("claim", ("g", "c")), NOON_NS, 1, facts)
            self.events.append(SeenEvent(node, "boot", event))
        for _ in range(self.draw(st.integers(0, 12))):
            self._record()

    def _fact(self, kind: str, *of: str) -> int:
        fact = TenantFact(next(self._numbers), kind, frozenset(of))
        self.facts.append(fact)
        return fact.number

    def _uses(self, tenant: str) -> None:
        for _ in range(self.draw(st.integers(0, 2))):
            self._job(tenant)
        if self.draw(st.booleans()):
            held = self._fact("use", tenant)
            self.sums[TimeKey(20_000, SlotState.OBSERVED, tenant)] = held * 10**9 * GPU_CAPACITY
            cell = ViewCell(account_catalog.TENANT_GPU_TIME, (tenant, "observed"), held)
            self.cells["tenant"] += [cell, ViewCell(A_TENANT, (tenant,), self._fact("use", tenant))]
        for period in PERIODS:
            if self.draw(st.booleans()):
                rows = [(f"gpu {period}", self._fact("invoice", tenant))]
                self.booked[tenant, period] = rows

    def _job(self, tenant: str) -> None:
        """A job, its node and its GPU, some of which others have a part of."""
        name, node, gpu = (str(self._fact("job", tenant)) for _ in range(3))
        job = JobKey(tenant, "kubernetes", f"ns/{name}")
        others = [
            JobKey(one, "slurm", "shared")
            for one in self.draw(st.sets(st.sampled_from(self.tenants)))
        ]
        if others:
            self.facts = [fact for fact in self.facts if str(fact.number) not in {node, gpu}]
        held = [JobHolding(one, node, 100, NOON_NS) for one in {job, *others}]
        self.roster.set_holdings(gpu, sorted(held))

    def _record(self) -> None:
        one, two = (self.draw(st.sampled_from(self.tenants)) for _ in range(2))
        shape = self.draw(
            st.sampled_from(["nobody", "one", "two", "list", "actor", "deep", "claim", "other"])
        )
        actor = RecordActor("scheduler", "slurm")
        of: tuple[str, ...] = (one,)
        data: RecordData = {"tenant": one}
        references: tuple[str, ...] = (f"frame/n/{one.encode().hex()}",)
        if shape == "nobody":
            of, data = (), {}
        elif shape == "two":
            of, data = (one, two), {"tenant": one, "to_tenant": two}
        elif shape == "list":
            of, data = (one, two), {"tenants": [one, two]}
        elif shape == "actor":
            label = Credential("board", Role.TENANT, two).label
            of, actor = (one, two), RecordActor("credential", label)
        elif shape == "deep":
            of, data = (one, two), {"tenant": one, "more": {"from_tenant": two}}
        elif shape == "claim":
            references = (f"slurm/n/{self._fact('audit')}/0/1",)
        elif shape == "other":
            of, data = (one, "another process"), {"tenant": one, "other_claim": "slurm/n/1"}
        data |= {"number": self._fact("audit", *of)}
        self.drafts.append(
            RecordDraft(
                "tenancy.assign", actor, NOON_NS, "done", RecordSubject("n"), data, references
            )
        )

    def views(self) -> CollectorViews:
        made = {name: View(name, NOON_NS, tuple(cells)) for name, cells in self.cells.items()}
        account = GpuTimeAccount(NOON_NS, 1, sum(self.sums.values()), self.sums)
        jobs = RunningJobs(
            NOON_NS,
            tuple(self.roster.jobs()),
            job_of_position=self.roster.job_of_position,
            numbers=self.roster.numbers,
        )
        return CollectorViews(NOON_NS, **made, account=account, jobs=jobs)


tenant_names = st.sampled_from(
    ["a", "A", "ab", "a b", "a/b", "a%2Fb", "..", "tenant", "audit", "é", "a?b", "n1"]
) | examples.names(6).map(lambda text: f"team {text}|")


@st.composite
def clusters(draw: st.DrawFn) -> RandomCluster:
    tenants = draw(st.lists(tenant_names, min_size=2, max_size=4, unique=True))
    nodes = draw(st.lists(st.sampled_from(["node-1", "node-2", "n/3"]), max_size=2, unique=True))
    return RandomCluster(tenants, nodes, draw)


def holders(cluster: RandomCluster) -> list[Credential]:
    plain = [Credential("x", role) for role in Role if role is not Role.TENANT]
    return [*plain, *(Credential("x", Role.TENANT, tenant) for tenant in cluster.tenants)]


def paths(cluster: RandomCluster, size: int) -> Iterator[str]:
    """Every route, and the parameters to try on it."""
    named = [*cluster.tenants, "nobody-at-all"]
    yield from (
        "/metrics",
        *(f"/api/v1/{view}" for view in ("cluster", "rails", "nodes", "events")),
    )
    for job in cluster.roster.jobs():
        yield "/api/v1/jobs/" + "/".join(quote(part, safe="") for part in job.key)
    for tail in ("", *(f"?tenant={quote(tenant, safe='')}" for tenant in named)):
        yield from (
            f"/{path}{tail}"
            for path in ("metrics", "api/v1/tenants", "api/v1/account", "api/v1/jobs")
        )
        yield from (f"/api/v1/audit{tail}", f"/api/v1/statements{tail}")
        for period in PERIODS:
            yield from (
                f"/api/v1/exports/{period}{tail}",
                f"/api/v1/exports/{period}{tail and '?'}",
            )
    for tenant in named:
        for period in PERIODS:
            at = f"/api/v1/statements/{quote(tenant, safe='')}/{period}"
            yield from (at, f"{at}?format=text")
    yield from (f"/api/v1/audit/entries/{index}" for index in range(size))
    yield from ("/api/v1/audit?from=2&limit=3", "/api/v1/audit/checkpoint")
    yield "/api/v1/audit/consistency?old=1"


async def obtained(
    cluster: RandomCluster, directory: Path
) -> dict[Credential, list[tuple[str, int, str]]]:
    """For each credential all paths, with the responses."""
    settings_ = settings_in(directory)
    lines = [
        f'[{section_name(holder)}]\n{quote_key(holder.name)} = "{digest_token(holder.label)}"\n'
        for holder in holders(cluster)
    ]
    (directory / "tokens.toml").write_text("".join(lines))
    collector = Collector(settings_, billing=BookedRows(cluster.booked))
    collector.refresher.views = cluster.views()
    collector.refresher.max_age_seconds = 1e10  # answers use them, however old they are
    for event in cluster.events:
        collector.core.add_event(event)
    for node in cluster.nodes:
        collector.core.fleet.get_or_add_node(node)
    size = await write_audit_log(collector, cluster.drafts)
    runner = web.AppRunner(collector.application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    found: dict[Credential, list[tuple[str, int, str]]] = {}
    try:
        async with aiohttp.ClientSession() as session:
            for holder in holders(cluster):
                headers = {"Authorization": f"Bearer {holder.label}"}
                for path in paths(cluster, size):
                    url = aiohttp.client.URL(base + path, encoded=True)
                    async with session.get(url, headers=headers) as answer:
                        text = await answer.text()
                        found.setdefault(holder, []).append((path, answer.status, text))
    finally:
        await runner.cleanup()
    return found


def numbers_in(texts: list[str]) -> set[int]:
    """The numbers in answers, also where they are within base64."""
    spelled = " ".join(texts)
    for part in re.findall(r"[A-Za-z0-9+/]{40,}={0,2}", spelled):
        try:
            spelled += " " + base64.b64decode(part, validate=True).decode(errors="replace")
        except binascii.Error:
            continue
    return {int(number[:9]) for number in re.findall(r"(?<!\d)3\d{8,}", spelled)}


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, one in value.items():
            yield from (key, *strings(one))
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)


def names_in(path: str, text: str) -> set[str]:
    """Names in an answer: label values of metrics, texts of JSON, cells of CSV."""
    if path.startswith("/metrics"):
        return set(re.findall(r'(?:tenant|node)="((?:[^"\\]|\\.)*)"', text))
    if text.startswith(("{", "[")):
        return set(strings(json.loads(text)))
    return {cell for line in text.splitlines() for cell in line.split(",")}


@fewer_examples(40)
@given(clusters())
def test_a_credential_obtains_what_is_its_own_and_nothing_else(cluster: RandomCluster) -> None:
    with tempfile.TemporaryDirectory() as directory:
        found = asyncio.run(obtained(cluster, Path(directory)))
    everything = {fact.number for fact in cluster.facts}
    for holder, answers in found.items():
        assert not [answer for answer in answers if answer[1] >= 500], holder
        good = [(path, text) for path, status, text in answers if status == 200]
        expected = {fact.number for fact in cluster.facts if visible(fact, holder)}
        assert numbers_in([text for _, text in good]) & everything == expected, holder
        assert numbers_in([text for _, _, text in answers]) & everything == expected, holder
        if holder.role is Role.TENANT:
            others = {*cluster.tenants, *cluster.nodes, "nobody-at-all"} - {holder.tenant}
            known = {"tenant", "audit", "n", "a"}  # keys of the answers themselves
            for path, text in good:
                assert not names_in(path, text) & (others - known), (holder, path)
