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

from support.command_line import run
from support.healthy_cluster import ROWS, STATUS, healthy_cluster
from support.scripted_server import by_path, json_response, response, scripted_server
from support.stories import Story

from railscope import __version__
from railscope.http_server import HttpServerRequest
from railscope_agent.endpoint.metrics_endpoint import MetricsEndpoint


class ReadServer:
    """A collector with documents."""

    def __init__(self) -> None:
        self.documents = healthy_cluster()
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
