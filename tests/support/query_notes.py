"""Queries of runbooks and documents, with the note before each that needs more than the default detail."""

from __future__ import annotations

import re

from railscope.catalog.declare import BASIC
from railscope_dashboards.promql import detail_of, metric_named, metrics_in


def detail_note(query: str) -> str:
    """Return the comment before a query; empty if the default detail contains all of its metrics."""
    if (detail := detail_of(query)) == BASIC:
        return ""
    found = filter(None, map(metric_named, metrics_in(query)))
    names = sorted({metric.name for metric in found if metric.detail != BASIC})
    pattern = names[0] if len(names) == 1 else f"-E '{'|'.join(names)}'"
    command = f"curl -s 'http://NODE:9469/metrics?detail={detail}' | grep {pattern}"
    return f"# needs detail {detail}; if empty: {command}"


def annotated_queries(text: str) -> list[tuple[str, str]]:
    """Return the queries of a text, each with the comment before it. A query ends where the next one starts.

    The lines of a query after the first are indented, or start with a closing parenthesis.
    """
    found: list[tuple[str, str]] = []
    for block in re.findall(r"^```promql\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        note = ""
        for line in filter(None, block.splitlines()):
            if line.startswith("#"):
                note = line
            elif line[0] in " )":
                found[-1] = found[-1][0], f"{found[-1][1]}\n{line}"
            else:
                found.append((note, line))
                note = ""
    return found
