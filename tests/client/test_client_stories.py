"""Commands that read a server, as text: the screen, errors and the exit status.

    status JSON            changes of the status that the collector returns
    node JSON, job JSON, gpu JSON, incident JSON     a further row, with changes of a healthy one
    answer PATH STATUS JSON    another answer of a path below /api/v1
    agent                  the server is an agent

Below `run COMMAND`: its lines of both outputs and `exit STATUS`. The collector has a healthy cluster until then: two nodes
n1 and n2 and one job; rows that are stated take the place of its own.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from support.command_line import run
from support.scripted_server import NOW_NS, by_path, json_response, response, scripted_server
from support.stories import Story

from railscope import __version__
from railscope.http_server import HttpServerRequest
from railscope.timestamps import SECOND_NS, format_timestamp
from railscope_agent.endpoint.metrics_endpoint import MetricsEndpoint

ROWS: dict[str, dict[str, Any]] = {
    "node": {
        "gpus": 8, "state": "healthy", "reason": "", "incidents": [], "agent_version": "0.2.0", "streams": ["gpu"],
        "railscope_node_reporting": 1.0, "railscope_node_last_frame_age_seconds": 0.5, "railscope_node_clock_offset_seconds": 0.001,
    },
    "job": {
        "tenant": "vision", "source": "slurm", "workload": "7", "start_ns": NOW_NS - 90 * SECOND_NS, "state": "healthy", "reason": "",
        "incidents": [], "gpus": 8.0, "nodes": 1, "stale_gpus": 0, "shared_gpus": 0, "rollups": [], "stragglers": [], "step": None,
    },
    "gpu": {
        "node": "n1", "gpu": "GPU-a", "index": "0", "pci_address": "", "rail": 0, "nics": ["eth0"], "state": "healthy", "use": "claimed",
        "health": "healthy", "reasons": [], "nic_state": "", "holders": [],
    },
    "incident": {
        "id": "abc", "class": "link_down", "text": "A link is down.", "title": "link_down: NIC eth0 of n1",
        "cause": {"kind": "nic", "node": "n1", "interface": "eth0", "device": "mlx5_0", "pci_address": "", "rail": 0, "switch": "", "switch_port": ""},
        "onset": format_timestamp(NOW_NS - 60 * SECOND_NS), "onset_uncertainty_seconds": 10.0, "runbook": "/runbooks/RailscopeIncident#link_down",
        "detected": format_timestamp(NOW_NS), "ended": None, "severity": "critical", "confidence": 0.9,
        "victims": [{"kind": "rack", "rack": "r", "nodes": ["n3"]}], "victim_count": 1, "jobs": [], "evidence": [], "symptoms": [],
        "lost_gpu_time_seconds": 9, "action": "check cable", "detail": "", "limits": "", "explained_by": None,
    },
}  # fmt: skip
STATUS = {
    "status": "healthy", "reasons": [], "age_seconds": 0.5, "nodes": {"healthy": 2, "degraded": 0, "unknown": 0, "failed": 0},
    "gpus": {"claimed": 8, "unclaimed": 1, "idle": 7, "unknown": 0}, "jobs": 1, "incidents": {"critical": 0, "warning": 0, "info": 0},
    "open_incidents": [], "absent": {},
}  # fmt: skip


class ReadServer:
    """A collector with documents."""

    def __init__(self) -> None:
        nodes = [ROWS["node"] | {"node": name} for name in ("n1", "n2")]
        tenant = {"tenant": "vision", "gpus": 8.0, "held_gpu_hours": 1.0, "jobs": 1, "incidents": 0}
        rows: dict[str, list[Any]] = {
            "nodes": nodes,
            "jobs": [ROWS["job"]],
            "gpus": [],
            "incidents": [],
        }
        self.documents: dict[str, Any] = {
            f"/api/v1/{name}": {"timestamp_ns": NOW_NS, "rows": found, "suppressed": 0, "found": 0}
            for name, found in rows.items()
        }
        self.documents["/api/v1/tenants"] = {
            "timestamp_ns": NOW_NS,
            "rows": [],
            "tenants": [tenant],
        }
        self.on_status("{}")
        self.stated: set[str] = set()

    def play(self, command: str) -> list[str]:
        """Run a command."""
        name, _, text = command.partition(" ")
        if name in ROWS:
            rows = self.documents[f"/api/v1/{name}s"]["rows"]
            if name not in self.stated:
                rows.clear()
            self.stated.add(name)
            rows.append(ROWS[name] | {"node": f"n{len(rows) + 1}"} | json.loads(text or "{}"))
            return []
        return getattr(self, f"on_{name}")(text) or []

    def on_status(self, text: str) -> None:
        listed = {"open_incidents": self.documents["/api/v1/incidents"]["rows"]}
        self.documents["/api/v1/status"] = STATUS | listed | json.loads(text)

    def on_answer(self, text: str) -> None:
        path, status, content = text.split(" ", 2)
        phrase = HTTPStatus(int(status)).phrase
        self.documents[f"/api/v1/{path}"] = json_response(json.loads(content), f"{status} {phrase}")

    def on_agent(self, _: str) -> None:
        agent = MetricsEndpoint("n1", lambda: (), lambda: 0, "secret")
        rejection = agent.respond(HttpServerRequest("/api/v1/nodes", {}))
        status = f"{rejection.status.value} {rejection.status.phrase}"
        self.documents["/api/v1/nodes"] = response(rejection.body, status)

    def on_run(self, text: str) -> list[str]:
        with scripted_server(by_path(self.documents)) as server:
            outcome = run(*text.split(), "--collector", server.url)
        text = outcome.output.replace(server.url, "http://COLLECTOR").replace(
            __version__, "VERSION"
        )
        lines = [line for line in text.splitlines() if not line.startswith(("Usage: ", "Try "))]
        assert max(map(len, outcome.stdout.splitlines()), default=0) <= 80
        return [*filter(None, map(str.rstrip, lines)), f"exit {outcome.exit_code}"]


def test_story(story: Story) -> None:
    story.play(ReadServer().play)
