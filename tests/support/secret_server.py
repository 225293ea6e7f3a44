"""API server of Kubernetes that has Secrets and StatefulSets of one namespace only."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRETS = "/api/v1/namespaces/railscope/secrets"
STATEFUL_SETS = "/apis/apps/v1/namespaces/railscope/statefulsets"
KINDS = {
    "v1": ("Secret", "ConfigMap", "Service", "ServiceAccount"),
    "apps/v1": ("StatefulSet", "DaemonSet"),
    "networking.k8s.io/v1": ("NetworkPolicy",),
    "policy/v1": ("PodDisruptionBudget",),
}
"""Kinds of the chart, by version. Only Secrets and StatefulSets can have objects."""


def discover() -> dict[str, Any]:
    """Return the documents that list versions and kinds, by path."""
    groups: list[dict[str, Any]] = []
    found: dict[str, Any] = {
        "/version": {"major": "1", "minor": "35", "gitVersion": "v1.35.0"},
        "/api": {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups},
    }
    for version, kinds in KINDS.items():
        group, slash, number = version.partition("/")
        if slash:
            listed = {"groupVersion": version, "version": number}
            groups.append({"name": group, "versions": [listed], "preferredVersion": listed})
        resources = [
            {"name": f"{kind.lower().removesuffix('y')}{'ies' if kind.endswith('y') else 's'}",
             "singularName": kind.lower(), "namespaced": True, "kind": kind, "verbs": ["get", "create", "patch"]}
            for kind in kinds
        ]  # fmt: skip
        path = f"/apis/{version}" if slash else f"/api/{version}"
        found[path] = {"kind": "APIResourceList", "groupVersion": version, "resources": resources}
    return found


DISCOVERY = discover()


class SecretServer(ThreadingHTTPServer):
    """API server with Secrets: objects have versions, and a patch of another version is rejected."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), SecretRequest)
        self.secrets: dict[str, dict[str, Any]] = {}
        self.stateful_sets: dict[str, dict[str, Any]] = {}
        self.version = 0
        self.before_patch: list[Callable[[], None]] = []
        """Changes by others, each made once before a patch is applied."""
        self.unreadable: set[str] = set()
        """Secrets of which each read fails."""

    def store(self, name: str, data: dict[str, str]) -> dict[str, Any]:
        self.version += 1
        metadata = {"name": name, "namespace": "railscope", "resourceVersion": str(self.version)}
        self.secrets[name] = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}  # fmt: skip
        return self.secrets[name]

    def put_text(self, name: str, **texts: str) -> None:
        data = {key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
        self.store(name, data)

    def text(self, name: str, key: str) -> str:
        return base64.b64decode(self.secrets[name]["data"][key]).decode()


class SecretRequest(BaseHTTPRequestHandler):
    """Request to the API server."""

    server: SecretServer

    def _answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _reject(self, code: int, reason: str) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
        self._answer(code, {**status, "reason": reason, "message": reason, "code": code})

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return content

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        name = path.removeprefix(f"{SECRETS}/")
        found = DISCOVERY.get(path) or self.server.secrets.get(name)
        if path.startswith(f"{STATEFUL_SETS}/"):
            found = self.server.stateful_sets.get(path.removeprefix(f"{STATEFUL_SETS}/"))
        if name in self.server.unreadable:
            self._reject(500, "InternalError")
        elif found:
            self._answer(200, found)
        else:
            self._reject(404, "NotFound")

    def do_POST(self) -> None:
        item = self._content()
        name = item["metadata"]["name"]
        if name in self.server.secrets:
            self._reject(409, "AlreadyExists")
        else:
            self._answer(201, self.server.store(name, item["data"]))

    def do_PATCH(self) -> None:
        name = self.path.partition("?")[0].removeprefix(f"{SECRETS}/")
        patch = {"metadata": {}, **self._content()}
        assert self.headers["Content-Type"] == "application/merge-patch+json"
        while self.server.before_patch:
            self.server.before_patch.pop()()
        present = self.server.secrets[name]
        expected = patch["metadata"].get("resourceVersion")
        if expected in {None, present["metadata"]["resourceVersion"]}:
            self._answer(200, self.server.store(name, present["data"] | patch["data"]))
        else:
            self._reject(409, "Conflict")

    def log_message(self, *_: object) -> None:
        """Write no log."""


@contextmanager
def run_secret_server() -> Iterator[SecretServer]:
    with SecretServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()
