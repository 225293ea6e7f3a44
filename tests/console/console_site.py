"""A running collector with a reader of each role, and a browser without a screen."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import aiohttp
from makers import FrameSender, gpu_schema
from running_collector import RunningCollector, run_collector, settings_in
from support.incidents import NIC, incident

from railscope.catalog import METRICS, cabling, entities, nic as nic_catalog
from railscope.frame import Entity, Frame, Schema
from railscope.reading import Absent
from railscope_collector.access.credentials import Role, digest_token
from railscope_collector.billing.billing_reader import BillingReader
from railscope_collector.diagnosis.incident_table import ReportedIncident

TOKENS = {role: f"token-of-{role}" for role in Role}
PLACES = {
    Role.NODE: ("nodes", "n1"),
    Role.OPERATOR: ("operators", "reader"),
    Role.FINANCE: ("finance", "bills"),
    Role.AUDITOR: ("auditors", "audit"),
    Role.TENANT: ("tenants.vision", "board"),
}
HTML = {"Accept": "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"}
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


def tokens_text(without: Role | None = None) -> str:
    """The tokens file, without the token of a role that has been revoked."""
    lines = []
    for role, (place, name) in PLACES.items():
        lines += [f"[{place}]"]
        lines += [f'{name} = "{digest_token(TOKENS[role])}"'] if role is not without else []
    return "\n".join(lines) + "\n"


@dataclass
class Answer:
    """A response that has been read."""

    status: int
    text: str
    headers: Mapping[str, str]


class Browser:
    """Requests as of a browser: HTML is accepted, cookies are stored, redirects are not followed."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session = session
        self.url = url

    async def get(self, path: str, **headers: str) -> Answer:
        sent = HTML | {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._ask("GET", path, sent)

    async def post(self, path: str, form: Mapping[str, str], **headers: str) -> Answer:
        sent = HTML | {name.replace("_", "-"): value for name, value in headers.items()}
        return await self._ask("POST", path, sent or SAME_ORIGIN, data=form)

    async def sign_in(self, token: str, target: str = "") -> Answer:
        form = {"token": token} | ({"next": target} if target else {})
        return await self.post("/sign-in", form, Sec_Fetch_Site="same-origin")

    async def _ask(self, method: str, path: str, headers: Mapping[str, str], **more: Any) -> Answer:
        url = aiohttp.client.URL(self.url + path, encoded=True)
        async with self.session.request(
            method, url, headers=headers, allow_redirects=False, **more
        ) as answer:
            return Answer(answer.status, await answer.text(), answer.headers)

    def cookies(self) -> dict[str, Any]:
        return {cookie.key: cookie for cookie in self.session.cookie_jar}


@contextlib.asynccontextmanager
async def browser(url: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[Browser]:
    jar = aiohttp.CookieJar(unsafe=True)
    connector = aiohttp.TCPConnector(ssl=tls or True)
    async with aiohttp.ClientSession(cookie_jar=jar, connector=connector) as session:
        yield Browser(session, url)


@contextlib.asynccontextmanager
async def console(
    directory: Path,
    ready: Callable[[RunningCollector], None] = lambda _: None,
    billing: Callable[[], BillingReader] | None = None,
    **more: Any,
) -> AsyncIterator[RunningCollector]:
    """A collector with frames of one node, and views of it; `ready` may prepare it before it starts."""
    settings = settings_in(directory, **more)
    (directory / "tokens.toml").write_text(tokens_text())
    async with run_collector(settings, ready, billing=billing) as running:
        sender = FrameSender()
        frames = sender.frames(gpu_schema("n1"), [[50, 60, 1000, 2000, 10, 20]], at=0)
        status, reply = await running.post(
            sender.body(frames, schemas=True),
            at=2,
            headers={"Authorization": f"Bearer {TOKENS[Role.NODE]}"},
        )
        assert status == 200, reply
        await running.collector.refresher.refresh()
        yield running


async def report_nic(
    running: RunningCollector,
    received: tuple[int, int],
    port: str,
    node: str = "n1",
    token: str = "",
) -> None:
    """Send two frames of the NIC of a node at this port of leaf-07, a minute apart, in which it has received more bytes and pause frames."""
    sent, paused = received
    of_nic = Entity(entities.NIC, ("eth0",), {"rail": "0"})
    facts = {"switch": "leaf-07", "switch_port": port}
    neighbour = Entity(entities.NIC_NEIGHBOUR, ("eth0",), facts)
    known = Schema("neighbour", ((cabling.NEIGHBOUR_KNOWN, of_nic),), (neighbour,))
    priority = Entity(entities.NIC_PRIORITY, ("eth0", "3"))
    columns = (
        (nic_catalog.PFC_RECEIVED, priority),
        (nic_catalog.PFC_RECEIVED_TIME, priority),
        (nic_catalog.RECEIVED, of_nic),
    )
    columns = tuple(columns[i] for i in Schema.ordered(columns))
    sender, counters = FrameSender(node, "run-2"), Schema("nic", columns)
    frames = [*sender.frames(known, [[1]], at=0)]
    for at, grown in ((0, 0), (60, 1)):
        frames_received = 70 + paused * grown
        row = {
            nic_catalog.PFC_RECEIVED: frames_received,
            nic_catalog.PFC_RECEIVED_TIME: frames_received,
            nic_catalog.RECEIVED: 10**18 + sent * grown,
        }
        frames += sender.frames(counters, [[row[metric] for metric, _ in columns]], at=at)
    headers = {"Authorization": f"Bearer {token or TOKENS[Role.NODE]}"}
    body = sender.body(frames, schemas=True)
    status, reply = await running.post(body, node=node, at=60, headers=headers)
    assert status == 200, reply


VOID = frozenset({"meta", "link", "input", "br", "img", "hr"})


class ElementCounter(HTMLParser):
    """Counts elements and texts, and collects links; checks that elements are nested."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = 0
        self.links: list[str] = []
        self.open: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.nodes += 1
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name == "href"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.nodes += bool(data.strip())


def count_elements(text: str) -> ElementCounter:
    counter = ElementCounter()
    counter.feed(text)
    counter.close()
    assert not counter.open
    return counter


def nic(node: str, rail: int) -> dict[str, Any]:
    return NIC | {"node": node, "interface": f"eth{rail}", "rail": rail}


def incident_at(
    node: str, rail: int, *, number: str = "I1", victims: Sequence[str] = (), **changes: Any
) -> ReportedIncident:
    """An open incident of a NIC; its victims are the NICs on the same rail of other nodes, and a job."""
    job = {"kind": "job", "tenant": "vision", "source": "slurm", "workload": "7", "speed": 0.5}
    given = {
        "cause": nic(node, rail),
        "title": f"slow_receiver: NIC eth{rail} of {node}",
        "victims": [nic(name, rail) for name in victims],
        "victim_count": len(victims),
        "jobs": [job] if victims else [],
    }
    return incident(number, **(given | changes))


def device_frames(  # noqa: PLR0913 - parameters of the stories
    sender: FrameSender,
    at: int,
    *,
    verdicts: str = "1,1",
    reasons: str = "xid",
    link: str = "1",
    load: str = "50",
    absent: str = "",
) -> list[Frame]:
    """Two frames of the GPUs of a node, of the verdicts on them, and of a NIC on each rail."""
    health, codes = [int(each) for each in verdicts.split(",")], reasons.split(",")
    count, number = len(health), int(load)
    gpus = [Entity(entities.GPU, (f"GPU-{sender.node}-{n}",), {"rail": str(n)}) for n in range(count)]  # fmt: skip
    nics = [Entity(entities.NIC, (f"eth{n}",), {"rail": str(n)}) for n in range(count)]
    because = [Entity(entities.GPU_REASON, (gpu.key[0], code)) for code in codes for gpu in gpus]
    verdict = [(METRICS["railscope_gpu_health"], gpu) for gpu in gpus]
    verdict += [(METRICS["railscope_gpu_health_reason_active"], each) for each in because]
    names = ("railscope_network_link_up", "railscope_nic_receive_bytes_total")
    traffic = tuple((METRICS[name], each) for name in names for each in nics)
    index, _, reason = absent.partition(":")
    code = Absent[reason.upper()].value if reason else 0
    missing = [code if str(n) == index else 0 for n in range(count)]
    rows = [[number] * count + [1000] * count + [0] * count] * 2
    judged = [[*health, *(int(each > 1) for each in health * len(codes))]] * 2
    received = [[int(link)] * count + [20 * number * (at + n)] * count for n in (0, 1)]
    return [
        *sender.frames(
            gpu_schema(sender.node, count), rows, at=at, reasons=bytes(missing * 3 if code else [])
        ),
        *sender.frames(Schema("gpu_verdict", tuple(verdict)), judged, at=at),
        *sender.frames(Schema("nic", traffic), received, at=at),
    ]
