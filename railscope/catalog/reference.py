"""Metric reference, generated from the declarations."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from railscope.catalog import EVENTS, METRICS, SUBJECT_OF, SUBJECTS, rollups
from railscope.catalog.declare import Metric

MADE = "Generated from the catalog; change the declarations in `railscope/catalog` instead."


def render(form: str) -> str:
    """Return the reference as "table", "md" or "json"."""
    if form == "json":
        return json.dumps(_as_json(), indent=1) + "\n"
    return "\n".join(pages().values()) if form == "md" else _table()


def _row(metric: Metric) -> dict[str, Any]:
    return {
        "name": metric.name,
        "subject": SUBJECT_OF[metric.name],
        "kind": str(metric.kind),
        "unit": str(metric.unit),
        "about": metric.about.name,
        "labels": list(metric.about.labels),
        "help": metric.help,
        "origin": metric.origin,
        "scale": str(metric.scale),
        "rollups": [str(rollup) for rollup in metric.rollups],
        "resets": metric.resets,
        "since": metric.since,
        "wraps_at_bits": metric.wraps_at_bits,
        "saturates": metric.saturates,
        "detail": str(metric.detail),
        "sparse": metric.sparse,
        "total": metric.total,
        "states": {str(code): state for code, state in metric.states.items()},
        "other_names": dict(metric.other_names),
        "facts": list(metric.about.facts) if metric.kind == "info" else [],
    }


def _as_json() -> dict[str, Any]:
    return {
        "metrics": [_row(metric) for metric in METRICS.values()],
        "rollups": [
            {
                "name": name,
                "labels": list(derived.metric.about.labels),
                "unit": str(derived.metric.unit),
                "metric": derived.source.name,
                "scope": derived.scope,
                "rollup": str(derived.rollup),
                "help": derived.metric.help,
            }
            for name, derived in rollups().items()
        ],
        "events": [
            {
                "name": event.name,
                "about": event.about.name,
                "labels": list(event.about.labels),
                "severity": event.severity,
                "help": event.help,
                "origin": event.origin,
                "facts": list(event.facts),
            }
            for event in EVENTS.values()
        ],
    }


def _table() -> str:
    width = max(map(len, METRICS))
    lines = []
    for metric in METRICS.values():
        labels = ",".join(metric.about.labels)
        lines.append(f"{metric.name:{width}}  {metric.kind:7}  {labels:24}  {metric.help}")
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """Return the reference as Markdown by file name: an index, a page per subject, events, roll-ups."""
    filled = set(SUBJECT_OF.values())
    subjects = {
        name: _first_line(module.__doc__) for name, module in SUBJECTS.items() if name in filled
    }
    written = {f"{name}.md": _subject_page(name, text) for name, text in subjects.items()}
    return {
        "README.md": _index(subjects),
        **written,
        "events.md": _events_page(),
        "rollups.md": _rollups_page(),
    }


def _first_line(docstring: str | None) -> str:
    return (docstring or "").partition("\n")[0]


def _page(title: str, text: str, *lines: str) -> str:
    return "\n".join([f"# {title}", "", text, "", MADE, "", *lines]) + "\n"


def _entry(name: str, meaning: str, *facts: str) -> str:
    """Return a list item: the meaning first, the facts in a line below."""
    return f"- `{name}` — {_plain(meaning)}\\\n  *{_plain(' · '.join(filter(None, facts)))}*"


def _plain(text: str) -> str:
    """Escape what Markdown would read as emphasis or an element."""
    return re.sub(r"([*<])", r"\\\1", text)


def _named(name: str, values: Iterable[object]) -> str:
    """Return values after their name; empty without values."""
    text = ", ".join(map(str, values))
    return f"{name} {text}" if text else ""


def _index(subjects: Mapping[str, str]) -> str:
    text = (
        "Every metric that the agent and the collector expose, by subject. `railscope catalog` prints\n"
        "the same reference as a table, as Markdown or as JSON.\n\n"
        "A counter enters a roll-up as its rate. The collector exposes a roll-up over the cluster, a rail, a tenant\n"
        "or a job as `railscope_<scope>_<roll-up>_...`."
    )
    counts = Counter(SUBJECT_OF.values())
    rows = [
        *((name, counts[name], about) for name, about in subjects.items()),
        ("events", len(EVENTS), "Events of agents, with their severity and facts."),
        ("rollups", len(rollups()), "Metrics that the collector derives."),
    ]
    lines = (f"| [{name}]({name}.md) | {count} | {about} |" for name, count, about in rows)
    return _page("Metrics", text, "| subject | entries | contents |", "|---|---|---|", *lines)


def _subject_page(subject: str, about: str) -> str:
    members = [metric for name, metric in METRICS.items() if SUBJECT_OF[name] == subject]
    names_by_origin: dict[str, list[str]] = {}
    for metric in members:
        names_by_origin.setdefault(_origin(metric), []).append(f"`{metric.name}`")
    origins = (
        f"- {', '.join(names)}: {text}"
        for text, names in names_by_origin.items()
        if text not in {"agent", "collector"}  # the subject states that
    )
    entries = map(_metric_entry, members)
    return _page(
        f"Metrics: {subject}", about, *entries, "", "## Origins and roll-ups", "", *origins
    )


def _metric_entry(metric: Metric) -> str:
    states = (f"{code} {state}" for code, state in metric.states.items())
    return _entry(
        metric.name,
        " ".join(filter(None, (metric.help, metric.resets))),
        str(metric.kind),
        str(metric.unit).replace("_", " "),
        _named("labels", metric.about.labels),
        f"detail {metric.detail}",
        _named("states", states),
    )


def _origin(metric: Metric) -> str:
    """Return the origin of a metric, its limits, roll-ups and other names."""
    bits = metric.wraps_at_bits
    width = f"{bits} bits wide in hardware, extended to 64 by the agent"
    if metric.saturates:
        width = f"stops at its highest value ({bits} bits), which is then a lower bound"
    facts = (
        metric.origin,
        _named("since", filter(None, [metric.since])),
        "" if bits == 64 and not metric.saturates else width,  # noqa: PLR2004 - the usual width
        _named("roll-ups", metric.rollups),
        *(f"{tool}: {names}" for tool, names in metric.other_names.items()),
    )
    return _plain(" · ".join(filter(None, facts)))


def _events_page() -> str:
    about = (
        "Events that agents send with their frames; the collector lists them at `/api/v1/events`."
    )
    entries = (
        _entry(
            event.name,
            event.help,
            event.severity,
            _named("labels", event.about.labels),
            _named("facts", event.facts),
        )
        for event in EVENTS.values()
    )
    return _page("Events", about, *entries)


def _rollups_page() -> str:
    about = (
        "Metrics that the collector derives from the readings of all nodes. A counter enters as its rate. A roll-up"
        " answers a question about the cluster, a rail or a tenant as a whole: amount and use (sum), usual share"
        " (mean), worst one (max, min), faults (sum). GPUs are rolled up by rail in load, power and temperature."
    )
    entries = (
        _entry(
            name,
            derived.title,
            f"{derived.rollup} of {derived.source.name}",
            _named("labels", derived.metric.about.labels),
        )
        for name, derived in rollups().items()
    )
    return _page("Roll-ups", about, *entries)
