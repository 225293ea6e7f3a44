"""Series of recording rules, from the rule files of Prometheus."""

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
    """Return the expression of each recorded series by its name, in evaluation order."""
    groups = (
        group
        for path in sorted(RULES.glob("*.yml"))
        for group in yaml.safe_load(path.read_text())["groups"]
    )
    return {r["record"]: r["expr"] for group in groups for r in group["rules"] if "record" in r}


def recorded_in(expression: str) -> frozenset[str]:
    """Return the names of recorded series in an expression."""
    return frozenset(_NAME.findall(expression))


def unknown_in(expression: str) -> frozenset[str]:
    """Return the names that no rule records."""
    return recorded_in(expression) - recorded().keys()


def expanded(expression: str) -> str:
    """Return an expression with recorded series replaced by their expressions.

    The matchers of a recorded series apply to all of its source series.
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
    """Return an expression with additional matchers on all of its series."""
    if not matchers:
        return expression

    def more(found: re.Match[str]) -> str:
        own = (found["matchers"] or "{}")[1:-1]
        return f"{found['name']}{{{', '.join(filter(None, (own, matchers)))}}}"

    return _SERIES.sub(more, expression)
