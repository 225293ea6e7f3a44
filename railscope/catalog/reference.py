"""Metric reference, generated from the declarations."""

from __future__ import annotations

import json
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


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


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


def _page(title: str, text: str, head: tuple[str, ...], rows: Iterable[Iterable[str]]) -> str:
    lines = [f"# {title}", "", text, "", MADE, ""]
    lines += [_markdown_line(head), "|---" * len(head) + "|", *map(_markdown_line, rows)]
    return "\n".join(lines) + "\n"


def _markdown_line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(_cell, cells)) + " |"


def _index(subjects: Mapping[str, str]) -> str:
    text = (
        "Every metric that the agent and the collector expose, by subject. `railscope catalog` prints\n"
        "the same reference as a table, as Markdown or as JSON.\n\n"
        "A counter enters a roll-up as its rate. The collector exposes a roll-up over the cluster, a rail, a tenant\n"
        "or a job as `railscope_<scope>_<roll-up>_...`."
    )
    counts = Counter(SUBJECT_OF.values())
    rows = [
        *((f"[{name}]({name}.md)", str(counts[name]), about) for name, about in subjects.items()),
        (
            "[events](events.md)",
            str(len(EVENTS)),
            "Events of agents, with their severity and facts.",
        ),
        ("[roll-ups](rollups.md)", str(len(rollups())), "Metrics that the collector derives."),
    ]
    return _page("Metrics", text, ("subject", "entries", "contents"), rows)


def _subject_page(subject: str, about: str) -> str:
    head = (
        "metric",
        "kind",
        "detail",
        "unit",
        "labels",
        "meaning",
        "origin",
        "since",
        "roll-up",
        "notes",
    )
    members = (metric for name, metric in METRICS.items() if SUBJECT_OF[name] == subject)
    return _page(f"Metrics: {subject}", about, head, map(_markdown_row, members))


def _events_page() -> str:
    about = (
        "Events that agents send with their frames; the collector lists them at `/api/v1/events`."
    )
    rows = (
        (
            f"`{event.name}`",
            event.severity,
            ", ".join(event.about.labels),
            event.help,
            ", ".join(event.facts),
        )
        for event in EVENTS.values()
    )
    return _page("Events", about, ("event", "severity", "labels", "meaning", "facts"), rows)


def _rollups_page() -> str:
    about = (
        "Metrics that the collector derives from the readings of all nodes. A counter enters as its rate. A roll-up"
        " answers a question about the cluster, a rail or a tenant as a whole: amount and use (sum), usual share"
        " (mean), worst one (max, min), faults (sum). GPUs are rolled up by rail in load, power and temperature."
    )
    rows = (
        (
            f"`{name}`",
            ", ".join(derived.metric.about.labels),
            f"{derived.rollup} of `{derived.source.name}`",
        )
        for name, derived in rollups().items()
    )
    return _page("Roll-ups", about, ("metric", "labels", "derived from"), rows)


def _markdown_row(metric: Metric) -> tuple[str, ...]:
    notes = [metric.resets] if metric.resets else []
    if metric.saturates:
        notes.append(
            f"Stops at its highest value ({metric.wraps_at_bits} bits): then a lower bound."
        )
    elif metric.wraps_at_bits != 64:  # noqa: PLR2004 - the usual width needs no note
        notes.append(f"{metric.wraps_at_bits} bits wide in hardware; the agent extends it to 64.")
    if metric.states:
        notes.append("States: " + ", ".join(metric.states.values()) + ".")
    notes += [f"{tool}: {names}." for tool, names in metric.other_names.items()]
    return (
        f"`{metric.name}`",
        str(metric.kind),
        str(metric.detail),
        str(metric.unit),
        ", ".join(metric.about.labels),
        metric.help,
        metric.origin,
        metric.since,
        ", ".join(map(str, metric.rollups)),
        " ".join(notes),
    )
