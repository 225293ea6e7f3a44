"""Roles, and the holders of credentials."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

MAX_RANK = 3
"""Highest authority of a claim that arrives over the network: that of a scheduler on the node.

Higher ones (an imported job list, an administrator) are configured at the collector only.
"""


class Role(StrEnum):
    """Role of a credential."""

    NODE = "node"
    """An agent: it reports for its node."""
    OPERATOR = "operator"
    """Runs the cluster: views, nodes, events, metrics."""
    FINANCE = "finance"
    """Bills: account, statements, exports."""
    AUDITOR = "auditor"
    """Reads everything, the audit log included, and changes nothing."""
    TENANT = "tenant"
    """Reads its own use, statements and audit entries."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Holder and rights of a token or a certificate."""

    name: str
    """Name of the holder; for a node's credential, the name of the node."""
    role: Role
    tenant: str = ""
    """The only tenant that it may read data of, for the role of a tenant."""
    max_rank: int = MAX_RANK
    """Highest authority of the claims that a node reports with it."""

    @property
    def label(self) -> str:
        """`role/name`, for a tenant `tenant/tenant/name`, percent-encoded; unique."""
        parts = (self.role, *([self.tenant] if self.role is Role.TENANT else []), self.name)
        return "/".join(quote(part, safe="") for part in parts)


def is_name(text: str) -> bool:
    """True if a text is valid as the name of a holder or tenant: it is recorded and compared."""
    return text.isprintable() and bool(text.strip()) and unicodedata.is_normalized("NFC", text)


ANYONE = Credential("", Role.OPERATOR)
"""Credential of an unauthenticated request, if reading is open to all."""
