"""Trial: one token that the agents of a few nodes share, to try Railscope without a token for each node.

An agent sends `TOKEN/NODE`, the shared token and the name of its node. The first names that arrive are bound to the
trial and stored in the state directory, so the token of a trial that was forgotten admits no further node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog

from railscope import durable_files, settings, wire
from railscope_collector.access import authentication, credentials

MAX_NODES = 20
"""A rack or two. Operators of more nodes have the means to create a token for each."""
END = "fix: create a token for each node, and remove trial_token_file (docs/access.md#trial)"
BANNER = f"Trial: all agents share one token, and each can report as any node of the trial; {END}"
OUTSIDE, UNNAMED, UNSTORED = (
    "node outside the trial",
    "no node name",
    "node of the trial not stored",
)
PROBLEMS: Mapping[str, str] = {
    OUTSIDE: f"node rejected: expected one of the first {MAX_NODES} nodes of the trial; {END}",
    UNNAMED: f"invalid token of the trial: expected TOKEN/NODE with a node name of at most {wire.MAX_NAME} characters",
    UNSTORED: "node rejected: cannot store its name; fix: read trial_nodes_write_failed in the log of the collector",
}
"""Texts for the agent, by the reason of a failed authentication."""
_FILE = "trial_nodes"
_TOKEN = re.compile(r"[A-Za-z0-9._~+=-]{32,256}")

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class TrialAccess:
    """Token of a trial, and the nodes that are bound to it."""

    key: credentials.CredentialKey
    path: Path
    nodes: list[str] = field(default_factory=list)

    @classmethod
    def from_file(cls, token_file: str, directory: Path) -> TrialAccess | None:
        """Return the trial with the token of a file; None if there is no file. Raises SettingsError."""
        if not token_file:
            return None
        token = settings.read_named_file("trial_token_file", token_file)
        if not _TOKEN.fullmatch(token):
            message = (
                f"invalid trial_token_file {token_file}: expected 32 to 256 letters, digits or ._~+=-;"
                f" fix: openssl rand -hex 32 >{token_file}"
            )
            raise settings.SettingsError(message)
        key = credentials.CredentialKey("token", credentials.digest_token(token))
        return cls(key, directory / _FILE)

    def open(self) -> None:
        """Read the bound nodes. Blocking; raises SettingsError for a damaged file, and OSError."""
        try:
            if self.path.exists():
                self.nodes = msgspec.json.decode(self.path.read_bytes(), type=list[str])
        except msgspec.MsgspecError as error:
            message = f"damaged {self.path}: {error}; fix: remove it, and nodes are bound again"
            raise settings.SettingsError(message) from error
        log.warning("trial_started", nodes=len(self.nodes), max_nodes=MAX_NODES)

    def authenticate(self, authorization: Sequence[str]) -> authentication.AuthenticationResult:
        """Authenticate an agent by its Authorization header, and bind its node.

        Binding waits for the disk, at most MAX_NODES times in the life of a state directory.
        """
        token, _, node = authentication.bearer_token(authorization).partition("/")
        if credentials.digest_token(token) != self.key.value:
            return authentication.AuthenticationResult(None, authentication.UNKNOWN_TOKEN)
        if not credentials.is_name(node) or len(node) > wire.MAX_NAME:
            return authentication.AuthenticationResult(None, UNNAMED, self.key)
        holder = credentials.Credential(node, credentials.Role.NODE)
        if node not in self.nodes and (reason := self._bind(node)):
            return authentication.AuthenticationResult(None, reason, self.key, holder)
        return authentication.AuthenticationResult(holder, "", self.key)

    def _bind(self, node: str) -> str:
        """Bind a node; return the reason if that is impossible."""
        if len(self.nodes) >= MAX_NODES:
            return OUTSIDE
        nodes = [*self.nodes, node]
        try:
            durable_files.write_durably(self.path, msgspec.json.encode(nodes))
        except OSError as error:
            log.error("trial_nodes_write_failed", file=str(self.path), problem=str(error))
            return UNSTORED
        self.nodes = nodes
        return ""
