"""Stories of a collector: what each role gets from the API and from the pages, of a small cluster.

The first story of a file is its cluster; each other story begins with it, as if it had just been reported.

    node n1 verdicts=1,3 reasons=xid link=0     report a node with a GPU per verdict: 1 healthy, 2 degraded, 3 failed
    events n1 xid:0000:01:00.0/79|name=~        report events of a node with facts; ~ is a space
    inventory n1,2,,2020-01-01T00:00:00Z,       rows of the inventory; `node n1 absent=1:gone` for a lost GPU
    wait 60                                     move the clock
    incident I1 nic:n1:3 severity=critical      add an incident
    diagnosed 181                               let the diagnosis be that old; `diagnosed never`
    operator /api/v1/gpus rows: node state      status of an answer, and a line of fields per row of a list
    operator /nodes                             status and heading of a page
    operator /nodes json rows: state            the same of a page as of the API
    find REGEX                                  all that is found in the text of the last answer
    links REGEX                                 links of the last page
    roles /api/v1/gpus                          status of an answer by role

Times of the answers are printed as seconds before now.
"""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from console_site import HTML, TOKENS, device_frames, nic, tokens_text
from makers import SECOND, START_BOOT_NS, START_WALL_NS, FrameSender
from running_collector import RunningCollector, run_collector, settings_in
from support import stories
from support.incidents import incident
from support.stories import Story

from railscope.catalog import EVENTS
from railscope.frame import Entity, Event
from railscope.service import run_in_thread
from railscope.timestamps import parse_timestamp
from railscope_collector.access.credentials import Role, digest_token
from railscope_collector.diagnosis.incident_table import IncidentTable, ReportedIncident

NODES = [f"n{number}" for number in range(1, 10)]
CLAIMS = """tenant,gpu,from,to,workload,share
vision,GPU-n1-0,2020-01-01T00:00:00Z,,train,
vision,GPU-n2-1,2020-01-01T00:00:00Z,,train,1/2
speech,GPU-n2-1,2020-01-01T00:00:00Z,,tune,1/2
speech,GPU-n3-0,2020-01-01T00:00:00Z,,tune,
"""
ROLES = list(Role)
TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:Z| UTC)?")


class Site:
    """A running collector on a clock that stories move."""

    def __init__(self, directory: Path) -> None:
        self.seconds = 100
        self.senders = {name: FrameSender(name) for name in NODES}
        self.incidents: list[ReportedIncident] = []
        self.text = self.source = ""
        self.has_claims = False
        self.loop, self.stack = asyncio.Runner(), AsyncExitStack()
        self.one: RunningCollector = self.loop.run(self._open(directory))

    async def _open(self, directory: Path) -> RunningCollector:
        (directory / "claims.csv").write_text(CLAIMS)
        self.inventory = directory / "inventory.csv"
        self.inventory.write_text("node,gpus,rdma_ports,from,to\n")
        settings = settings_in(
            directory,
            claims_file=str(directory / "claims.csv"),
            inventory_file=str(self.inventory),
            view_refresh_seconds=3600,
        )
        nodes = "".join(f'{name} = "{digest_token(f"token-{name}")}"\n' for name in NODES)
        tokens = tokens_text(Role.NODE).replace("[nodes]\n", f"[nodes]\n{nodes}")
        (directory / "tokens.toml").write_text(tokens)
        self.session = await self.stack.enter_async_context(aiohttp.ClientSession())
        return await self.stack.enter_async_context(run_collector(settings, self._set_clock))

    def _set_clock(self, one: RunningCollector) -> None:
        one.collector.clock.wall_ns = lambda: START_WALL_NS + self.seconds * SECOND
        one.collector.clock.boot_ns = lambda: START_BOOT_NS + self.seconds * SECOND

    def close(self) -> None:
        self.loop.run(self.stack.aclose())
        self.loop.close()

    def begin(self) -> None:
        """Forget incidents, and let all that was reported be long past."""
        self.incidents = []
        self.seconds += 10_000
        self.diagnosed(0)

    def run(self, command: str) -> list[str]:
        """Play a command."""
        name, *words = command.split(" ")
        match name:
            case "node":
                self.loop.run(self._report(words[0], **dict(each.split("=") for each in words[1:])))
            case "events":
                self.loop.run(self._report(words[0], events=words[1:]))
            case "wait":
                self.seconds += int(words[0])
                self.diagnosed(0)
                self.loop.run(self._refresh())
            case "incident":
                self._add(words[0], words[1], dict(each.split("=", 1) for each in words[2:]))
            case "inventory":
                rows = "".join(f"{row}\n" for row in words)
                self.inventory.write_text(f"node,gpus,rdma_ports,from,to\n{rows}")
                self.loop.run(self._refresh())
            case "diagnosed":
                self.diagnosed(None if words[0] == "never" else int(words[0]))
            case "find":
                found = re.finditer(" ".join(words), self.text)
                return [" ".join(each.groups() or [each[0]]).strip() for each in found]
            case "links":
                links = map(html.unescape, re.findall(r'href="([^"]*)"', self.source))
                return sorted({link for link in links if re.search(words[0], link)})
            case "roles":
                return [self._statuses(words[0])]
            case _:
                return self._answer(Role(name), words[0], words[1:])
        return []

    def diagnosed(self, seconds: int | None) -> None:
        now_ns = START_WALL_NS + self.seconds * SECOND
        at_ns = 0 if seconds is None else now_ns - seconds * SECOND
        self.one.collector.diagnosis.table = IncidentTable(at_ns, tuple(self.incidents))

    def _add(self, number: str, cause: str, changes: dict[str, Any]) -> None:
        kind, node, *index = cause.split(":")
        rail = int(index[0]) if index else 0
        of_gpu = {"kind": "gpu", "node": node, "index": rail, "uuid": f"GPU-{node}-{rail}"}
        causes = {"nic": nic(node, rail), "gpu": of_gpu | {"pci_address": ""}}
        if victims := changes.pop("victims", ""):
            changes["victims"] = [nic(each, rail) for each in victims.split(",")]
            changes["victim_count"] = len(changes["victims"])
        if tenant := changes.pop("tenant", ""):
            job = {"kind": "job", "tenant": tenant, "source": "file", "workload": "train"}
            changes["jobs"] = [job | {"speed": 0.5}]
        title = f"{number} of {node}"
        given = {"cause": causes.get(kind, {"kind": kind, "node": node}), "title": title}
        found = replace(incident(number, **given | changes), onset_ns=START_WALL_NS)
        reached = frozenset({node, *(each["node"] for each in changes.get("victims", ()))})
        nodes = {tenant: reached} if tenant else {}
        self.incidents.append(replace(found, tenant_nodes=nodes))
        self.diagnosed(0)

    async def _report(self, node: str, **given: Any) -> None:
        """Send two frames of each stream of a node."""
        events = tuple(self._event(*each.split(":", 1)) for each in given.pop("events", ()))
        frames = device_frames(self.senders[node], self.seconds - 2, **given)
        frames[1] = replace(frames[1], events=events)
        body = self.senders[node].body(frames, schemas=True)
        status, reply = await self.one.post(body, node=node, at=self.seconds)
        assert status == 200, reply
        await self._refresh()

    async def _refresh(self) -> None:
        collector = self.one.collector
        await run_in_thread(collector.files.refresh)
        if not self.has_claims:
            self.has_claims = await collector.finalizer.attempt()
        await collector.refresher.refresh()

    def _event(self, name: str, text: str) -> Event:
        key, *facts = text.replace("~", " ").split("|")
        entity = Entity(EVENTS[name].about, tuple(key.split("/")))
        at, known = self.seconds * SECOND, dict(fact.split("=", 1) for fact in facts)
        return Event(EVENTS[name], entity, START_WALL_NS + at, START_BOOT_NS + at, known)

    async def _ask(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        url = aiohttp.client.URL(self.one.url + path, encoded=True)
        async with self.session.get(url, headers=headers, allow_redirects=False) as answer:
            return answer.status, await answer.text()

    def _get(self, role: Role, path: str, *, as_json: bool = False) -> int:
        is_json = as_json or path.startswith("/api/")
        accepted = {"Accept": "application/json"} if is_json else HTML
        token = "token-n1" if role is Role.NODE else TOKENS[role]
        headers = accepted | {"Authorization": f"Bearer {token}"}
        status, self.source = self.loop.run(self._ask(path, headers))
        self.text = re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", self.source)))
        self.text = TIME.sub(self._relative, self.text)
        return status

    def _statuses(self, path: str) -> str:
        return ", ".join(f"{role} {self._get(role, path)}" for role in ROLES)

    def _answer(self, role: Role, path: str, fields: list[str]) -> list[str]:
        as_json = fields[:1] == ["json"]
        fields = fields[as_json:]
        status = self._get(role, path, as_json=as_json)
        if not self.source.startswith("{"):
            heading = re.findall(r"<h1[^>]*>(.*?)</h1>", self.source) or [""]
            words = re.sub(r"<[^>]*>", "", html.unescape(heading[0])).split()
            return [" ".join([str(status), *words])]
        content = msgspec.json.decode(self.source)
        if status != 200:
            return [f"{status} {content['error']}"]
        rows = [content]
        if fields and fields[0].endswith(":"):
            rows = self._field(content, fields.pop(0)[:-1])
        return ["200"] * (not fields) + [
            ", ".join(self._shown(self._field(row, field)) for field in fields).rstrip(", ")
            for row in rows
            if fields
        ]

    def _field(self, value: Any, path: str) -> Any:
        for name in path.split("."):
            if isinstance(value, list) and name.lstrip("-").isdigit():
                value = value[int(name)]
            elif isinstance(value, list):
                value = [each[name] for each in value]
            else:
                value = value.get(name) if value is not None else None
        return value

    def _shown(self, value: Any) -> str:
        if isinstance(value, list):
            return f"[{'; '.join(map(self._shown, value))}]"
        if isinstance(value, dict):
            return " ".join(f"{name}={self._shown(each)}" for name, each in value.items())
        if isinstance(value, int | float) and value > START_WALL_NS:
            return self._since(round(value))
        if isinstance(value, float):
            return f"{value:.6g}"
        return "-" if value is None else TIME.sub(self._relative, str(value))

    def _relative(self, found: re.Match[str]) -> str:
        text = found[0].replace(" UTC", "Z").replace(" ", "T")
        return self._since(parse_timestamp(text if text.endswith("Z") else text + "Z"))

    def _since(self, time_ns: int) -> str:
        seconds = self.seconds - (time_ns - START_WALL_NS) / SECOND
        return f"(-{seconds:g} s)" if abs(seconds) < 10_000 else "(long ago)"


@pytest.fixture(scope="module")
def sites() -> Iterator[dict[Path, Site]]:
    found = dict[Path, Site]()
    yield found
    for site in found.values():
        site.close()


def test_answers(
    story: Story, sites: dict[Path, Site], tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = sites.get(story.path) or Site(tmp_path_factory.mktemp("site"))
    sites[story.path] = site
    site.begin()
    cluster = stories.read(story.path)[0]
    if story.line != cluster.line:
        cluster.play(site.run)
    story.play(site.run)
