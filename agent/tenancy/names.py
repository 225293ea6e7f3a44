"""Names shared by the agent and `railscope claim`."""

from __future__ import annotations

SOCKET = "claims.sock"
"""Name of the socket in the agent's state directory."""
CLAIMS = "/v1/claims"
