"""`railscope agent topology`: what is where on this server, and which card is whose."""

from __future__ import annotations

import json

from agent.config import TopologySettings
from agent.host import Host
from agent.topology.node import look
from agent.topology.render import as_json, as_text
from agent.topology.rules import rules


def show(host: Host, settings: TopologySettings, form: str) -> tuple[str, bool]:
    """The topology in a form (`text` or `json`), and whether the settings fit the server.

    Raises SettingsError where the settings cannot be right on any server.
    """
    node = look(host, rules(settings))
    shown = json.dumps(as_json(node), indent=1) + "\n" if form == "json" else as_text(node)
    return shown, not node.network.problems
