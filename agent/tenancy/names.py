"""Names that the agent and `railscope claim` agree upon."""

from __future__ import annotations

SOCKET = "claims.sock"
"""The socket, in the agent's state directory."""
CLAIMS = "/v1/claims"
