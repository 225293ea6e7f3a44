"""Roles, and whom a credential stands for."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

MAX_RANK = 3
"""Highest authority of a claim that arrives over the network: that of a scheduler on the node.

What stands above it (an imported job list, an administrator) is configured at the collector only.
"""


class Role(StrEnum):
    """What a credential is for."""

    NODE = "node"
    """An agent: it speaks for its node."""
    OPERATOR = "operator"
    """Who runs the cluster: views, nodes, events, metrics."""
    FINANCE = "finance"
    """Who bills: account, statements, exports."""
    AUDITOR = "auditor"
    """Reads everything, the audit log included, and changes nothing."""
    TENANT = "tenant"
    """Sees its own use, statements and audit entries."""


@dataclass(frozen=True, slots=True)
class Credential:
    """Whom a token or a certificate stands for."""

    name: str
    """Of the holder; a node's credential has the name of the node."""
    role: Role
    tenant: str = ""
    """The only one whose data it reaches, where the role is that of a tenant."""
    max_rank: int = MAX_RANK
    """Highest authority of the claims that a node reports with it."""

    @property
    def label(self) -> str:
        """`role/name`, of a tenant `tenant/tenant/name`, percent-encoded: no two have the same."""
        parts = (self.role, *([self.tenant] if self.role is Role.TENANT else []), self.name)
        return "/".join(quote(part, safe="") for part in parts)


def is_name(text: str) -> bool:
    """Whether a text can be a holder's or a tenant's name: it is recorded, and told from others."""
    return text.isprintable() and bool(text.strip()) and unicodedata.is_normalized("NFC", text)


ANYONE = Credential("", Role.OPERATOR)
"""Who shows nothing, where reading is open to all."""
