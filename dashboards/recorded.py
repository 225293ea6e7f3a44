"""Series that recording rules make, by the rule files that Prometheus is given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import yaml

RULES = Path(__file__).parents[1] / "alerts" / "rules"
_NAME = re.compile(r"\brailscope:[\w:]+")
_SERIES = re.compile(
    r'\b(?P<name>railscope[_:][\w:]+)(?P<matchers>\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\})?'
)


@cache
def recorded() -> Mapping[str, str]:
    """The expression of each recorded series, by its name, in the order in which they are made."""
    groups = (
        group
        for path in sorted(RULES.glob("*.yml"))
        for group in yaml.safe_load(path.read_text())["groups"]
    )
    return {r["record"]: r["expr"] for group in groups for r in group["rules"] if "record" in r}


def recorded_in(expression: str) -> frozenset[str]:
    """The names of recorded series that an expression has."""
    return frozenset(_NAME.findall(expression))


def unknown_in(expression: str) -> frozenset[str]:
    """The names that no rule makes."""
    return recorded_in(expression) - recorded().keys()


def expanded(expression: str) -> str:
    """An expression, with the expressions of recorded series in the place of their names.

    What a recorded series is matched by goes to all it is made of.
    """

    def made(found: re.Match[str]) -> str:
        made_of = recorded().get(found["name"])
        if made_of is None:
            return found[0]
        return f"({_matched(made_of, (found['matchers'] or '{}')[1:-1])})"

    while recorded_in(expression) & recorded().keys():
        expression = _SERIES.sub(made, expression)
    return expression


def _matched(expression: str, matchers: str) -> str:
    """An expression, all of whose series are matched by something more."""
    if not matchers:
        return expression

    def more(found: re.Match[str]) -> str:
        own = (found["matchers"] or "{}")[1:-1]
        return f"{found['name']}{{{', '.join(filter(None, (own, matchers)))}}}"

    return _SERIES.sub(more, expression)
