"""Trial: one token that the agents of a few nodes share, to try Railscope without a token for each node.

An agent sends `TOKEN/NODE`, the shared token and the name of its node. The first names that arrive are bound to the
trial and stored in the state directory, so the token of a trial that was forgotten admits no further node.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import structlog

from railscope import durable_files, settings, wire
from railscope_collector import config
from railscope_collector.access import authentication, credentials
from railscope_collector.ledger.database_location import ledger_url

MAX_NODES = 20
"""A rack or two. Operators of more nodes have the means to create a token for each."""
END = "fix: create a token for each node, and remove trial_token_file (docs/access.md#trial)"
BANNER = f"Trial: all agents share one token, and each can report as any node of the trial; {END}"
OUTSIDE, OWN_TOKEN, UNNAMED, UNSTORED = (
    "node outside the trial",
    "node with a token of its own",
    "no node name",
    "node of the trial not stored",
)
PROBLEMS: Mapping[str, str] = {
    OUTSIDE: f"node rejected: expected one of the first {MAX_NODES} nodes of the trial; {END}",
    OWN_TOKEN: "node rejected: expected its own token, as in the tokens file of the collector",
    UNNAMED: f"invalid token of the trial: expected TOKEN/NODE with a node name of at most {wire.MAX_NAME} characters",
    UNSTORED: "node rejected: cannot store its name; fix: read trial_nodes_write_failed in the log of the collector",
}
"""Texts for the agent, by the reason of a failed authentication."""
_FILE = "trial_nodes"
_Names = Annotated[list[wire.Name], msgspec.Meta(max_length=MAX_NODES)]
# No slash, which separates the token from the name of the node. At least 32 characters: it is chosen by a person.
_TOKEN = re.compile(r"[A-Za-z0-9._~+=-]{32,256}")

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class TrialAccess:
    """Token of a trial, and the nodes that are bound to it."""

    key: credentials.CredentialKey
    path: Path
    nodes: list[str] = field(default_factory=list)

    @classmethod
    def from_settings(
        cls, collector: config.CollectorSettings, directory: Path
    ) -> TrialAccess | None:
        """Return the trial of a collector; None if there is none. Raises SettingsError."""
        # Nodes of a trial may be simulated, and each can report as any other: nothing of it belongs in a ledger
        # that outlives the trial or that other collectors write.
        if collector.trial_token_file and ledger_url(collector.ledger, directory) != ledger_url(
            config.LedgerSettings(), directory
        ):
            message = (
                "invalid trial_token_file with ledger.url or ledger.url_file: expected the ledger of the state directory"
                " in a trial; fix: remove ledger.url and ledger.url_file, or trial_token_file"
            )
            raise settings.SettingsError(message)
        return cls.from_file(collector.trial_token_file, directory)

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
        self.nodes = self.read_nodes()
        log.warning("trial_started", nodes=len(self.nodes), max_nodes=MAX_NODES)

    def read_nodes(self) -> list[str]:
        """Return the stored names. Blocking; raises SettingsError for a damaged file, and OSError."""
        if not self.path.exists():
            return []
        try:
            nodes = msgspec.json.decode(self.path.read_bytes(), type=_Names)
        except msgspec.MsgspecError as error:
            problem = str(error)
        else:
            if len(set(nodes)) == len(nodes) and all(map(credentials.is_name, nodes)):
                return nodes
            problem = "expected different names of nodes"
        fix = "delete it; nodes are bound again when they report"
        message = f"damaged {self.path}: {problem}; fix: {fix}"
        raise settings.SettingsError(message)

    def authenticate(
        self, authorization: Sequence[str], others: credentials.Credentials
    ) -> authentication.AuthenticationResult:
        """Authenticate an agent by its Authorization header, and bind its node.

        The token replaces no credential in `others`, those of the tokens file: a node that has one there is not
        bound, and one that was bound before keeps to the lowest authority that the file gives it. Binding waits
        for the disk, once for each node that can be stored.
        """
        token, _, node = authentication.bearer_token(authorization).partition("/")
        # Compared by digests: the time of the comparison reveals nothing about the token.
        if credentials.digest_token(token) != self.key.value:
            return authentication.AuthenticationResult(None, authentication.UNKNOWN_TOKEN)
        if not credentials.is_name(node) or len(node) > wire.MAX_NAME:
            return authentication.AuthenticationResult(None, UNNAMED, self.key)
        own = [
            entry.credential.max_authority
            for entry in others.entries.values()
            if (entry.credential.role, entry.credential.name) == (credentials.Role.NODE, node)
        ]
        authority = min(own, default=credentials.MAX_AUTHORITY)
        holder = credentials.Credential(node, credentials.Role.NODE, max_authority=authority)
        if node not in self.nodes and (reason := OWN_TOKEN if own else self._bind(node)):
            return authentication.AuthenticationResult(None, reason, self.key, holder)
        return authentication.AuthenticationResult(holder, "", self.key)

    def _bind(self, node: str) -> str:
        """Bind a node; return the reason if that is impossible."""
        if len(self.nodes) >= MAX_NODES:
            return OUTSIDE
        nodes = [*self.nodes, node]
        try:
            # Before the node is admitted: after a restart, another one must not take its place.
            durable_files.write_durably(self.path, msgspec.json.encode(nodes))
        except OSError as error:
            log.error("trial_nodes_write_failed", file=str(self.path), problem=str(error))
            return UNSTORED
        self.nodes = nodes
        return ""
