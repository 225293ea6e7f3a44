"""Words for the devices and jobs that an incident affects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

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
    """Return the number of victims of each kind; empty without any."""
    return count_text(incident.victims, incident.victim_count)


def count_text(listed: Sequence[api.EntityDocument], number: int) -> str:
    """Return the number of entities of each kind, of which a part is listed; the rest are "others"."""
    kinds = Counter(str(each.__struct_config__.tag) for each in listed)
    texts = [figures.count(each, _NOUNS.get(kind, kind)) for kind, each in kinds.items()]
    others = number - len(listed)
    return figures.listing([*texts, *([figures.count(others, "other")] if others > 0 else [])])
