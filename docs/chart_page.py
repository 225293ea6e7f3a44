"""Table of the values of the Helm chart in docs/kubernetes.md, from the comments of its values.yaml."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGE = "docs/kubernetes.md"
VALUES = "deploy/helm/railscope/values.yaml"
_ENTRY = re.compile(r"^( {0,2})(?:# (.*)\n\1)?(\w+):", re.MULTILINE)
_HEAD = ("value", "default", "meaning")
_TABLE = re.compile(r"^\| value \| default \| meaning \|\n(?:\|.*\n)+", re.MULTILINE)


class ChartValue(NamedTuple):
    """A value of the chart, by its dotted key, with the comment above it."""

    key: str
    default: Any
    description: str


def values() -> list[ChartValue]:
    """Return the values of the chart. Raises ValueError for one without a comment."""
    text = (ROOT / VALUES).read_text()
    content = yaml.safe_load(text)
    found, section = [], ""
    for indent, description, name in _ENTRY.findall(text):
        if not (indent or description):
            section = name
            continue
        key, default = (f"{section}.{name}", content[section][name]) if indent else (name, content[name])  # fmt: skip
        if not description:
            message = f"{VALUES}: {key}: expected a comment of one line above it"
            raise ValueError(message)
        found.append(ChartValue(key, default, description))
    return found


def page(table: Callable[[Iterable[str], Iterable[Iterable[str]]], list[str]]) -> str:
    """Return the page with its table of the values."""
    rows = ((f"`{key}`", f"`{json.dumps(default)}`", text) for key, default, text in values())
    made = "\n".join(table(_HEAD, rows)).rstrip("\n") + "\n"
    text, count = _TABLE.subn(lambda _: made, (ROOT / PAGE).read_text())
    if count != 1:
        message = f"{PAGE}: expected one table of the values"
        raise ValueError(message)
    return text
