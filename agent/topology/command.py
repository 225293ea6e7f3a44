"""`railscope agent topology`: devices of this node and rails of its NICs."""

from __future__ import annotations

import json

from agent.config import TopologySettings
from agent.host import Host
from agent.topology.node import look
from agent.topology.render import as_json, as_text
from agent.topology.rules import rules


def show(host: Host, settings: TopologySettings, form: str) -> tuple[str, bool]:
    """Return the topology in a format (`text` or `json`), and whether the settings match the node.

    Raises SettingsError for settings that are invalid on every node.
    """
    node = look(host, rules(settings))
    shown = json.dumps(as_json(node), indent=1) + "\n" if form == "json" else as_text(node)
    return shown, not node.network.problems
