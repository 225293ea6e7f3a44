"""Each exception from a rule of the linter or the type checker has its reason beside it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("agent", "bench", "collector", "dashboards", "railscope")
EXCEPTION = re.compile(
    r"# *(noqa(: *[A-Z]+[0-9]+(, *[A-Z]+[0-9]+)*)?|type: *ignore(\[[a-z, -]+\])?)"
)


def test_an_exception_from_a_rule_has_a_reason() -> None:
    reasons = {
        (str(path.relative_to(ROOT)), number): _reason(line[found.start() :])
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if (found := EXCEPTION.search(line))
    }
    assert reasons
    assert [place for place, reason in reasons.items() if not reason] == []


def _reason(comment: str) -> str:
    """Text of a comment beside the exceptions."""
    return EXCEPTION.sub("", comment).strip(" #-")
