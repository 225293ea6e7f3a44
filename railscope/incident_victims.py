"""What an incident affects, in words."""

from __future__ import annotations

from collections import Counter

from railscope import api, figures

_NOUNS = {
    "nic": "NIC",
    "gpu": "GPU",
    "leaf": "leaf switch",
    "storage": "storage server",
    "other": "device",
}
"""Kinds of entities that people call by another word."""


def affected_text(incident: api.IncidentDocument) -> str:
    """Return the number of victims of each kind; empty without any. `others` are those that the document does not list."""
    kinds = Counter(str(each.__struct_config__.tag) for each in incident.victims)
    texts = [figures.count(number, _NOUNS.get(kind, kind)) for kind, number in kinds.items()]
    others = incident.victim_count - len(incident.victims)
    return figures.listing([*texts, *([figures.count(others, "other")] if others > 0 else [])])
