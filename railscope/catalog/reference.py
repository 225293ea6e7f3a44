"""Metric reference, generated from the declarations."""

from __future__ import annotations

import json
from typing import Any

from railscope.catalog import EVENTS, METRICS, SUBJECT_OF, rollups
from railscope.catalog.declare import Metric


def render(form: str) -> str:
    """Return the reference as "table", "md" or "json"."""
    if form == "json":
        return json.dumps(_as_json(), indent=1) + "\n"
    return _markdown() if form == "md" else _table()


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
                "of": derived.source.name,
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


def _markdown() -> str:
    lines = [
        "# Metric reference",
        "",
        "Made from the catalog by `railscope catalog --format md`; change the declarations instead.",
        "",
        "A counter rolls up as its rate. Where a metric rolls up over the cluster, a rail, a tenant or a job,",
        "the collector exposes it as `railscope_<scope>_<roll-up>_...`.",
    ]
    subject = ""
    for metric in METRICS.values():
        if SUBJECT_OF[metric.name] != subject:
            subject = SUBJECT_OF[metric.name]
            lines += ["", f"## {subject}", "",
                      "| metric | kind | unit | labels | meaning | origin | since | roll-up | notes |",
                      "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
        lines.append(_markdown_row(metric))
    lines += [
        "",
        "## Events",
        "",
        "| event | severity | labels | meaning | facts |",
        "|---|---|---|---|---|",
    ]
    for event in EVENTS.values():
        labels, facts = ", ".join(event.about.labels), ", ".join(event.facts)
        lines.append(f"| `{event.name}` | {event.severity} | {labels} | {event.help} | {facts} |")
    lines += ["", "## Roll-ups", "", "| metric | labels | of |", "|---|---|---|"]
    for name, derived in rollups().items():
        labels = ", ".join(derived.metric.about.labels)
        lines.append(f"| `{name}` | {labels} | {derived.rollup} of `{derived.source.name}` |")
    return "\n".join(lines) + "\n"


def _markdown_row(metric: Metric) -> str:
    notes = [metric.resets] if metric.resets else []
    if metric.saturates:
        notes.append(
            f"Sticks at its highest value ({metric.wraps_at_bits} bits): at least that many."
        )
    elif metric.wraps_at_bits != 64:  # noqa: PLR2004 - the usual width needs no note
        notes.append(
            f"{metric.wraps_at_bits} bits wide in hardware; the agent carries it on to 64."
        )
    if metric.states:
        notes.append("States: " + ", ".join(metric.states.values()) + ".")
    notes += [f"{tool}: {names}." for tool, names in metric.other_names.items()]
    cells = [
        f"`{metric.name}`", str(metric.kind), str(metric.unit), ", ".join(metric.about.labels),
        metric.help, metric.origin, metric.since, ", ".join(map(str, metric.rollups)),
        " ".join(notes),
    ]  # fmt: skip
    return "| " + " | ".join(map(_cell, cells)) + " |"
