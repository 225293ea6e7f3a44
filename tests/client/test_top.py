"""`railscope top` through Textual's pilot: keys, filters, drill-down, lost connections, sizes, hostile texts."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from email.utils import formatdate
from typing import Any

import pytest
from rich.text import Text
from support.command_line import run
from support.scripted_server import (
    KEPT_OPEN,
    NOW_NS,
    ScriptedServer,
    by_path,
    json_response,
    response,
    scripted_server,
)
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from railscope.client.connection import MAX_CONNECTIONS, ReadClient, ServerAddress
from railscope.client.tables import show_short_time
from railscope.client.top import TopApp, TopHelp
from railscope.client.top_views import TopView, create_pages, row_subject
from railscope.timestamps import SECOND_NS, format_timestamp

HEAD = ("/api/v1/cluster", "/api/v1/incidents", "/api/v1/inventory", "/api/v1/nodes")
HOSTILE = "evil\x1b[2J\u202e\n[red]name"
SIZES = [(80, 24), (200, 60)]
FAILED = {"state": "failed", "reason": "cause of xid: GPU 1 of n1", "incidents": ["abc"]}


def node(name: str, **more: Any) -> dict[str, Any]:
    return {
        "node": name, "state": "healthy", "gpus": 2, "agent_version": "0.2.0", "streams": ["gpu"], "railscope_node_reporting": 1.0,
        "railscope_node_last_frame_age_seconds": 0.5, "railscope_node_clock_offset_seconds": 0.001,
    } | more  # fmt: skip


def node_document(name: str) -> dict[str, Any]:
    """Two GPUs, of which the second has failed, and the NIC of the first."""
    holder = {"tenant": "vision", "source": "slurm", "workload": "7", "held_ratio": 1.0}
    return {
        "node": name, "timestamp_ns": NOW_NS, "streams": {"gpu": {"timestamp_ns": NOW_NS, "age_seconds": 1.5, "readings": []}},
        "gpus": [
            {"node": name, "gpu": "GPU-a", "index": "0", "rail": 0, "holders": [holder], "nics": ["eth0"], "state": "healthy", "health": "healthy",
             "utilization_ratio": 0.5, "power_watts": 412.0, "link_up": True},
            {"node": name, "gpu": "GPU-b", "index": "1", "rail": 1, "state": "failed", "health": "failed"},
        ],
    }  # fmt: skip


def fleet_gpus(names: tuple[str, ...]) -> dict[str, Any]:
    """The GPU on rail 1 of the first node has failed; all others are healthy."""
    holder = {"tenant": "vision", "source": "slurm", "workload": "7", "held_ratio": 1.0}
    rows = [
        {"node": name, "gpu": f"GPU-{name}-{rail}", "index": str(rail), "rail": rail, "nics": [f"eth{rail}"],
         "state": "healthy", "health": "healthy", "power_watts": 412.0, "holders": [holder]}
        for name in names for rail in (1, 0)
    ]  # fmt: skip
    rows[0] |= {"state": "failed", "reasons": ["xid"], "link_up": False, "power_watts": None}
    return {"timestamp_ns": NOW_NS, "found": 2 * len(names), "rows": rows}


def rail_rows(nodes: int) -> list[dict[str, Any]]:
    """A cell of rail 1 has failed, and a NIC of rail 0 pauses its switch."""
    pausing = {"rail": 0, "healthy": nodes, "max_pausing_ratio": 0.51}
    failed = {
        "rail": 1,
        "failed": 1,
        "healthy": nodes - 1,
        "max_paused_ratio": 0.001,
        "max_temperature_celsius": 71.0,
    }
    return [pausing, failed]


def documents(names: tuple[str, ...] = ("n1", "n2")) -> dict[str, Any]:
    view = {"timestamp_ns": NOW_NS}
    job = {
        "tenant": "vision",
        "source": "slurm",
        "workload": "7",
        "start_ns": NOW_NS,
        "gpus": 2.0,
        "nodes": 1,
    }
    incident = {
        "id": "abc", "class": "xid", "title": f"xid: GPU 1 of {names[0]}", "severity": "critical",
        "cause": {"kind": "gpu", "node": names[0], "index": 1, "uuid": "", "pci_address": ""}, "text": "", "detail": "", "limits": "",
        "onset": format_timestamp(NOW_NS), "onset_uncertainty_seconds": 10.0, "detected": format_timestamp(NOW_NS), "ended": None,
        "confidence": 0.9, "victims": [], "victim_count": 0, "jobs": [], "symptoms": [], "lost_gpu_seconds": 0, "runbook": "", "explained_by": None,
        "action": "reset the GPU",
        "evidence": [
            {"signal": "xid 79", "device": "GPU 1", "value": 1.0, "threshold": None, "comparison": "", "window_seconds": 0.0}
        ],
    }  # fmt: skip
    event = {
        "node": names[0],
        "name": "xid",
        "wall_ns": NOW_NS,
        "facts": {"xid": "79"},
        "device": {"kind": "gpu", "index": "1"},
    }
    values = {"gpus": 4.0, "mean_gpu_claimed_ratio": 0.5, "unclaimed_gpus": 1.0}
    return {
        "/api/v1/cluster": view | {"rows": [{"metric": f"railscope_cluster_{name}", "value": value, "labels": {}} for name, value in values.items()]},
        "/api/v1/nodes": view | {"rows": [node(name, **(FAILED if name == names[0] else {})) for name in names]},
        "/api/v1/inventory": view | {"nodes": None},
        "/api/v1/incidents": view | {"rows": [incident]},
        "/api/v1/incidents/abc": incident,
        "/api/v1/jobs": view | {"rows": [job]},
        "/api/v1/tenants": view | {"rows": [], "tenants": [{"tenant": "vision", "gpus": 2.0, "held_gpu_hours": 1.0}]},
        "/api/v1/events": {"events": [event]},
        "/api/v1/jobs/vision/slurm/7": job | {"places": [{"node": names[0], "gpu": "GPU-a", "index": "0"}]},
        "/api/v1/gpus": fleet_gpus(names),
        "/api/v1/rails": view | {"rows": [], "rails": rail_rows(len(names))},
        **{f"/api/v1/nodes/{name}": node_document(name) for name in ("n1", "n2")},
    }  # fmt: skip


def paths_of(server: ScriptedServer) -> list[str]:
    """Targets of all requests in order of their names; those of nodes without the sources, those of incidents without the state."""
    targets = (request.split(" ")[1] for request in server.requests)
    return sorted(target.removesuffix("?state=open").partition("?stream=")[0] for target in targets)


class TopScreen:
    """A running `top`, its server, and what it shows."""

    def __init__(
        self, app: TopApp, pilot: Pilot[None], server: ScriptedServer, content: dict[str, Any]
    ) -> None:
        self.app, self.pilot, self.server, self.content = app, pilot, server, content

    def text(self, name: str) -> str:
        return str(self.app.screen_stack[0].query_one(f"#{name}", Static).render())

    def rows(self) -> list[list[str]]:
        table: DataTable[Text] = self.app.screen_stack[0].query_one("#rows", DataTable)
        return [
            [str(cell) for cell in table.get_row_at(number)] for number in range(table.row_count)
        ]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the screen meets a condition."""
        async with asyncio.timeout(20):
            while not condition():
                await self.pilot.pause(0.02)

    async def shows(self, name: str, first: str) -> None:
        """Wait until a view is shown that begins with a row."""
        await self.until(
            lambda: (
                self.text("title").startswith(name)
                and "(reading)" not in self.text("title")
                and [row[0] for row in self.rows()[:1]] == [first]
            )
        )

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)


@asynccontextmanager
async def top(
    content: dict[str, Any],
    size: tuple[int, int] = (80, 24),
    *,
    agent: bool = False,
    interval: float = 30,
) -> AsyncIterator[TopScreen]:
    with scripted_server(by_path(content)) as server:
        pages = create_pages(
            ReadClient(ServerAddress(server.url, is_agent=agent, timeout_seconds=5))
        )
        app = TopApp(pages, server.url, interval)
        async with app.run_test(size=size) as pilot:
            yield TopScreen(app, pilot, server, content)


@pytest.mark.parametrize("size", SIZES)
async def test_nodes_are_shown_worst_first_and_each_view_has_a_key(size: tuple[int, int]):
    async with top(documents(), size) as screen:
        await screen.shows("nodes", "n1")
        assert [row[:2] for row in screen.rows()] == [["n1", "failed"], ["n2", "healthy"]]
        assert screen.text("head").startswith(
            "FAILED  nodes: 1 healthy, 1 failed  GPUs: 2 claimed, 1 used without a claim, 1 idle  incidents: 1  data: "
        )
        for key, name, first in (
            ("j", "jobs", "vision"), ("t", "tenants", "vision"), ("i", "incidents", "critical"),
            ("e", "events", show_short_time(format_timestamp(NOW_NS))), ("g", "gpus", "n1"), ("r", "rails", "1"), ("n", "nodes", "n1"),
        ):  # fmt: skip
            await screen.press(key)
            await screen.until(
                lambda name=name: screen.text("title").startswith(name) and bool(screen.rows())
            )
            table: DataTable[Text] = screen.app.query_one("#rows", DataTable)
            assert table.virtual_size.width <= size[0]
            assert screen.rows()[0][0].rstrip("~") in first
        await screen.press("escape")
        await screen.shows("rails", "1")


async def test_enter_leads_from_the_tenant_to_the_gpu_and_its_nic():
    async with top(documents()) as screen:
        await screen.shows("nodes", "n1")
        await screen.press("t")
        await screen.shows("tenants", "vision")
        for title, first in (
            ("jobs  tenant=vision", "vision"),
            ("nodes of vision/slurm/7", "n1"),
            ("gpus of n1", "1"),
        ):
            await screen.press("enter")
            await screen.shows(title, first)
        assert len(screen.rows()) == 2
        assert "n1: GPUs read 1.5 s ago" in screen.text("title")
        await screen.press("down", "enter")
        await screen.shows("gpu of n1/GPU-a", "GPU")
        facts = dict(screen.rows())
        assert (facts["NIC"], facts["LINK"], facts["RAIL"], facts["HOLDER"]) == (
            "eth0",
            "up",
            "0",
            "vision/7",
        )
        for title in ("gpus", "nodes", "jobs", "tenants", "nodes"):
            await screen.press("escape")
            await screen.until(lambda title=title: screen.text("title").startswith(title))


async def test_a_filter_selects_rows_and_an_invalid_one_states_the_form():
    async with top(documents()) as screen:
        await screen.shows("nodes", "n1")
        await screen.press("slash", *"foo=bar", "enter")
        await screen.until(
            lambda: "unknown filter key 'foo': expected one of age_seconds" in screen.text("foot")
        )
        screen.app.query_one(Input).value = ""
        await screen.press(*"state=HEALTHY", "enter")
        await screen.shows("nodes  state=HEALTHY", "n2")
        await screen.press("slash", "end", *" N2", "enter")
        await screen.shows("nodes  state=HEALTHY  N2", "n2")
        await screen.press("escape")
        await screen.shows("nodes  state=HEALTHY", "n2")
        await screen.press("slash", *"x", "escape")
        assert not screen.app.query_one(Input).display
        await screen.press("escape")
        await screen.shows("nodes", "n1")
        await screen.press("i")
        await screen.shows("incidents", "critical")
        await screen.press("enter")
        await screen.until(lambda: screen.text("title").startswith("incident of abc"))
        await screen.until(lambda: ["action", "reset the GPU"] in screen.rows())


async def test_the_reason_for_a_dash_is_in_the_footer_and_help_names_the_keys():
    async with top(documents(), interval=0.05) as screen:
        await screen.shows("nodes", "n1")
        assert "q quit" in screen.text("foot")
        await screen.press("j")
        await screen.until(
            lambda: "STEP: the traffic of the job shows no steps" in screen.text("foot")
        )
        assert "SLOWEST GPU" not in screen.text("foot"), "the column is not shown"
        await screen.press("question_mark")
        await screen.until(lambda: isinstance(screen.app.screen, TopHelp))
        read = len(screen.server.requests)
        await screen.until(lambda: len(screen.server.requests) > read + 8)
        screen.app.on_resize()
        await screen.press("escape")
        await screen.until(lambda: not isinstance(screen.app.screen, TopHelp))


async def test_a_lost_connection_is_shown_with_the_age_of_the_rows_and_retried():
    content = documents()
    # Documents that change during a read are lost in part.
    async with top(content, interval=1) as screen:
        await screen.shows("nodes", "n1")
        content |= dict.fromkeys(content, b"lost")
        await screen.until(lambda: screen.text("head").startswith("NO DATA for "))
        assert "retrying; OLD DATA, age " in screen.text("head")
        assert "no HTTP answer" in screen.text("head")
        assert screen.rows(), "the old rows stay"
        content |= documents()
        await screen.until(lambda: screen.text("head").startswith("FAILED  nodes: 1 healthy"))
        content["/api/v1/nodes"] = b"lost"
        await screen.until(lambda: not screen.rows())
        assert screen.text("head").startswith("FAILED  GPUs: 2 claimed, 1 used without")
        assert "unknown: nodes" in screen.text("head")
        assert "no HTTP answer" in screen.text("foot"), "the view is unknown, with the reason"
        content |= documents()
        await screen.shows("nodes", "n1")
        content["/api/v1/incidents"] = json_response(
            {"error": "not yet"}, "503 Service Unavailable"
        )
        await screen.until(lambda: "unknown: incidents" in screen.text("head"))
        assert screen.text("head").startswith("FAILED"), "a node has failed"


async def test_one_view_at_a_time_is_read_and_the_end_does_not_wait_for_it():
    async with top(documents()) as screen:
        await screen.shows("nodes", "n1")
        assert paths_of(screen.server) == sorted(HEAD)
        screen.server.silent.set()
        await screen.press("j", "t", "space", "space", "n", "i")
        await screen.until(lambda: len(screen.server.requests) > len(HEAD) + 4)
        assert paths_of(screen.server) == sorted([*HEAD, *HEAD, "/api/v1/jobs"])
        assert "(reading)" in screen.text("title")
        started = time.monotonic()
        await screen.press("q")
    assert time.monotonic() - started < 5, "shorter than the limit of the request"


@pytest.mark.parametrize(
    ("view", "further"),
    [
        (TopView("nodes"), []),
        (TopView("gpus"), ["/api/v1/gpus?limit=500&offset=0"]),
        (TopView("gpus", ("n1",)), ["/api/v1/nodes/n1"]),
        (TopView("rails"), ["/api/v1/rails"]),
        (TopView("jobs"), ["/api/v1/jobs"]),
        (TopView("nodes", ("vision", "slurm", "7")), ["/api/v1/jobs/vision/slurm/7"]),
        (TopView("tenants"), ["/api/v1/jobs", "/api/v1/tenants"]),
        (TopView("incident", ("abc",)), ["/api/v1/incidents/abc"]),
        (TopView("events"), ["/api/v1/events"]),
    ],
)
def test_a_view_takes_one_round_trip_on_connections_that_are_kept(
    view: TopView, further: list[str]
):
    """Each response waits until all requests of the view have been received."""
    expected = sorted([*HEAD, *further])
    together = threading.Barrier(len(expected), timeout=20)

    def answer(target: str) -> bytes:
        together.wait()
        content = documents()[target.partition("?")[0]]
        return json_response(content, "200 OK", KEPT_OPEN)

    with (
        scripted_server(answer) as server,
        closing(ReadClient(ServerAddress(server.url))) as client,
    ):
        pages = create_pages(client)
        for _ in range(2):
            page = pages.read(view)
            assert (page.table.absence, bool(page.table.rows)) == ("", True)
        assert paths_of(server) == sorted(2 * expected)
        assert len(server.connections) == len(expected) <= MAX_CONNECTIONS


async def test_a_page_that_is_received_at_the_end_is_not_drawn():
    for _ in range(5):
        async with top(documents(), interval=0.001) as screen:
            await screen.shows("nodes", "n1")


async def test_hostile_names_stay_text_and_many_rows_are_bounded():
    names = (HOSTILE, *(f"n{number:05}" for number in range(3000)))
    async with top(documents(names)) as screen:
        await screen.until(lambda: bool(screen.rows()))
        assert screen.rows()[0][0].startswith(r"evil\x1b[2J\u202e\n[red]")
        assert len(screen.rows()) == 500
        assert "500 of 3001 rows" in screen.text("title")
        assert "3000 healthy" in screen.text("head")
        await screen.press("slash", *"node=n02999", "enter")
        await screen.shows("nodes", "n02999")
        assert "\x1b" not in screen.app.export_screenshot()


async def test_incidents_are_above_the_nodes_and_not_above_other_views():
    content = documents()
    (one,) = content["/api/v1/incidents"]["rows"]
    more = [one | {"id": f"i{number}", "severity": "warning"} for number in range(6)]
    content["/api/v1/incidents"] |= {"rows": [*more, one]}
    async with top(content) as screen:
        await screen.shows("nodes", "n1")
        lines = screen.text("incidents").splitlines()
        assert lines[0].split() == ["critical", "0", "s", "xid:", "GPU", "1", "of", "n1"]
        assert [line.split()[0] for line in lines[1:5]] == ["warning"] * 4
        assert lines[5:] == ["and 2 more: key i"]
        await screen.press("r")
        await screen.shows("rails", "1")
        assert not screen.app.query_one("#incidents").display
        await screen.press("escape")
        await screen.shows("nodes", "n1")
        content["/api/v1/incidents"] |= {"rows": []}
        await screen.press("space")
        await screen.until(lambda: not screen.app.query_one("#incidents").display)
        once = run("top", "--once", "--collector", screen.server.url).stdout
    assert "critical" not in once
    with scripted_server(by_path(documents())) as server:
        text = run("top", "--once", "--collector", server.url).stdout
    assert text.index("xid: GPU 1 of n1  abc") < text.index("NODE  STATE")


@pytest.mark.parametrize("width", [80, 100, 120, 140, 200])
async def test_key_columns_are_whole_at_each_width_and_a_wider_terminal_shows_no_less(width: int):
    content = documents(("gpu-node-1", "gpu-node-2"))
    for row in content["/api/v1/gpus"]["rows"]:
        row |= {"gpu": "GPU-1b98b982-45d3-4727-aca1-f3ff84e4712b", "pci_address": "0000:9d:00.0",
                "nics": ["ens5f0np0"], "utilization_ratio": 0.5}  # fmt: skip
    reason = "cause of ecc_uncorrectable: an uncorrectable memory error; its job has ended"
    content["/api/v1/gpus"]["rows"][0]["reasons"] = [reason]
    async with top(content, (width, 30)) as screen:
        await screen.shows("nodes", "gpu-node-1")
        await screen.press("g")
        await screen.shows("gpus", "gpu-node-1")
        table: DataTable[Text] = screen.app.query_one("#rows", DataTable)
        row = dict(
            zip(
                (str(column.label) for column in table.ordered_columns),
                screen.rows()[0],
                strict=True,
            )
        )
        assert (row["NODE"], row["GPU"], row["STATE"]) == ("gpu-node-1", "1", "failed")
        assert row["BUSY"] == ("███     50 %" if width >= 120 else "50 %")
        assert "~" not in "".join(
            text for head, text in row.items() if head not in {"NIC", "REASON"}
        )
        assert row.get("UUID", "GPU-1b98b982-45d3-4727-aca1-f3ff84e4712b").endswith("712b")
        if width >= 140:
            assert row["REASON"].startswith(reason[:50])
        await screen.press("r")
        await screen.shows("rails", "1")
        heads = [str(column.label) for column in table.ordered_columns]
        assert {"PAUSED", "PAUSING"} <= set(heads)
        assert ("HOTTEST" in heads) == (width >= 100)


async def test_a_pausing_rail_is_coloured_and_comes_after_failed_ones():
    content = documents()
    content["/api/v1/rails"]["rails"] += [
        {"rail": 2, "degraded": 1, "healthy": 2},
        {"rail": 3, "healthy": 2, "max_paused_ratio": 0.06},
    ]
    async with top(content, (120, 30)) as screen:
        await screen.shows("nodes", "n1")
        await screen.press("r")
        await screen.shows("rails", "1")
        assert [row[0] for row in screen.rows()] == ["1", "0", "3", "2"]
        table: DataTable[Text] = screen.app.query_one("#rows", DataTable)
        styles = [[cell.style for cell in table.get_row_at(number)[5:7]] for number in range(4)]
        assert styles == [["", ""], ["", "bold red"], ["yellow", ""], ["", ""]]


async def test_a_view_is_sorted_by_any_column_in_both_directions():
    async with top(documents(), (120, 30)) as screen:
        await screen.shows("nodes", "n1")
        await screen.press("o", "O")
        await screen.shows("nodes  sorted by NODE, reversed", "n2")
        await screen.press("enter")
        await screen.shows("gpus of n1", "1")
        assert "sorted" not in screen.text("title")
        await screen.press("escape")
        await screen.shows("nodes", "n1")
        await screen.pilot.click("#rows", offset=(2, 0))
        await screen.shows("nodes  sorted by NODE", "n1")
        await screen.pilot.click("#rows", offset=(2, 0))
        await screen.shows("nodes  sorted by NODE, reversed", "n2")
        await screen.press("escape")
        await screen.until(lambda: "sorted" not in screen.text("title"))


async def test_the_first_rail_and_the_first_gpu_are_opened_like_any_other():
    """Their number is zero."""
    async with top(documents()) as screen:
        await screen.shows("nodes", "n1")
        await screen.press("r")
        await screen.shows("rails", "1")
        await screen.press("down", "enter")
        await screen.until(lambda: screen.text("title").startswith("gpus  rail=0"))
    for key, values in (("rail", 0), ("source", 0)):
        view = "rails" if key == "rail" else "sources"
        assert row_subject(TopView(view), {key: values}) == ("0",)
        assert row_subject(TopView(view), {key: None}) == ("",)


async def test_words_are_searched_in_the_gpus_that_were_read():
    content = documents()
    async with top(content, (120, 30)) as screen:
        await screen.shows("nodes", "n1")
        await screen.press("g")
        await screen.shows("gpus", "n1")
        await screen.press("slash", *"n2 eth1", "enter")
        await screen.shows("gpus  n2 eth1", "n2")
        assert len(screen.rows()) == 1
        assert "rows" not in screen.text("title")
        content["/api/v1/gpus"] |= {"found": 9000}
        await screen.press("space")
        await screen.until(lambda: "'n2 eth1' in 4 of 9000 GPUs" in screen.text("title"))


async def test_rails_lead_to_their_gpus_and_nics():
    async with top(documents()) as screen:
        await screen.shows("nodes", "n1")
        await screen.press("r")
        await screen.shows("rails", "1")
        assert screen.rows()[0][:7] == ["1", "1", "0", "0", "1", "0.1 %", "-"]
        assert "no fresh reading of the rail" in screen.text("foot")
        await screen.press("enter")
        await screen.shows("gpus  rail=1", "n1")
        assert screen.rows()[0][1:3] == ["1", "failed"]
        assert "eth1 down" in screen.rows()[0]
        assert "/api/v1/gpus?limit=500&offset=0&rail=1" in paths_of(screen.server)
        await screen.press("slash", *" state=bad", "enter")
        content = json_response({"error": "invalid query: state"}, "400 Bad Request")
        screen.content["/api/v1/gpus"] = content
        await screen.press("space")
        await screen.until(lambda: "invalid query: state" in screen.text("foot"))


async def test_a_long_list_is_read_in_parts():
    names = tuple(f"n{number:05}" for number in range(250))
    content = documents(names)
    content["/api/v1/gpus"] |= {"found": 1001}
    async with top(content) as screen:
        await screen.until(lambda: bool(screen.rows()))
        await screen.press("g")
        await screen.shows("gpus", names[0])
        assert "1-500 of 1001 rows" in screen.text("title")
        for keys, title in (
            (">", "501-1000"),
            (">", "1001-"),
            (">", "1001-"),
            ("<", "501-1000"),
            ("<", "1-500"),
            ("<", "1-500"),
        ):
            await screen.press({">": "greater_than_sign", "<": "less_than_sign"}[keys])
            await screen.until(lambda title=title: f"{title}" in screen.text("title"))
        offsets = [
            request.split(" ")[1] for request in screen.server.requests if "offset=" in request
        ]
        assert [path.partition("offset=")[2] for path in offsets] == [
            "0",
            "500",
            "1000",
            "500",
            "0",
        ]


async def test_the_gpu_of_a_tenant_is_one_of_its_own():
    denied = json_response({"error": "access denied"}, "403 Forbidden")
    content = documents() | dict.fromkeys(
        ("/api/v1/nodes", "/api/v1/cluster", "/api/v1/inventory", "/api/v1/rails"), denied
    )
    async with top(content) as screen:
        await screen.shows("jobs", "vision")
        await screen.press("g")
        await screen.shows("gpus", "n1")
        await screen.press("enter")
        await screen.shows("gpu of n1/GPU-n1-1", "NODE")
        assert ["HOLDER", "vision/7"] in screen.rows()
        assert "/api/v1/nodes/n1" not in " ".join(screen.server.requests)


async def test_a_tenant_sees_its_jobs():
    denied = json_response({"error": "access denied"}, "403 Forbidden")
    content = documents() | dict.fromkeys(
        ("/api/v1/nodes", "/api/v1/cluster", "/api/v1/inventory"), denied
    )
    async with top(content) as screen:
        await screen.shows("jobs", "vision")
        await screen.press("n")
        await screen.until(lambda: "access denied" in screen.text("foot"))
        requested = [request.split(" ")[1] for request in screen.server.requests]
        assert requested.count("/api/v1/nodes") == 1, "each denial is an audit record"


async def test_an_agent_has_gpus_and_sources():
    text = (
        'railscope_node_info{hostname="n1"} 1\nrailscope_source_state{source="gpu",state="ok"} 1\n'
        'railscope_source_age_seconds{source="gpu"} 0.5\nrailscope_gpu_info{gpu="GPU-a",index="0",rail="0"} 1\n'
        'railscope_gpu_health{gpu="GPU-a",state="degraded"} 1\n'
    )
    async with top({"/metrics": response(text.encode())}, agent=True) as screen:
        await screen.shows("gpus", "0")
        assert screen.text("head").startswith("DEGRADED  GPUs: 1 total, 1 degraded")
        await screen.press("s")
        await screen.shows("sources", "gpu")
        await screen.press("j")
        assert screen.text("title").startswith("sources")


async def test_rates_of_an_agent_come_from_two_readings_and_their_times():
    """The time of the answer is that of no reading, and has a resolution of a second."""
    text = (
        'railscope_node_info{hostname="n1"} 1\nrailscope_gpu_info{gpu="GPU-a",index="0",rail="0"} 1\n'
        'railscope_nic_info{interface="eth0",rail="0"} 1\nrailscope_source_read_timestamp_seconds{source="nic"} TIME\n'
        'railscope_nic_receive_bytes_total{interface="eth0"} COUNT\n'
    )
    date = f"Date: {formatdate(NOW_NS // SECOND_NS, usegmt=True)}"
    first = text.replace("TIME", "1000.9").replace("COUNT", "0")
    content: dict[str, Any] = {"/metrics": response(first.encode(), "200 OK", date)}
    async with top(content, (200, 60), agent=True, interval=0.05) as screen:
        await screen.shows("gpus", "0")
        await screen.until(lambda: "a rate needs two readings" in screen.text("foot"))
        second = text.replace("TIME", "1001.4").replace("COUNT", "1e9")
        content["/metrics"] = response(second.encode(), "200 OK", date)
        await screen.until(lambda: any("16" in row for row in screen.rows()))


# Without a terminal ------------------------------------------------------------------------------


def test_off_a_terminal_the_first_view_is_printed_once():
    with scripted_server(by_path(documents())) as server:
        outcome = run("top", "--collector", server.url)
        content = json.loads(run("top", "--json", "--collector", server.url).stdout)
    assert outcome.exit_code == 0
    lines = outcome.stdout.splitlines()
    assert lines[0].startswith("FAILED  nodes: 1 healthy, 1 failed")
    assert [line.split()[0] for line in lines[-2:]] == ["n1", "n2"]
    assert max(map(len, lines)) <= 80
    assert [row["node"] for row in content["nodes"]] == ["n1", "n2"]
