"""Each exception from a rule of the linter or the type checker has its reason beside it."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("agent", "bench", "collector", "dashboards", "railscope")
EXCEPTION = re.compile(
    r"# *(noqa(: *[A-Z]+[0-9]+(, *[A-Z]+[0-9]+)*)?|type: *ignore(\[[a-z, -]+\])?)"
)


def test_an_exception_from_a_rule_has_a_reason() -> None:
    reasons: dict[tuple[Path, int], str] = {}
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        with tokenize.open(path) as file:
            for token in tokenize.generate_tokens(file.readline):
                if token.type == tokenize.COMMENT and EXCEPTION.match(token.string):
                    reasons[path.relative_to(ROOT), token.start[0]] = _reason(token.string)
    assert reasons
    assert [place for place, reason in reasons.items() if not reason] == []


def _reason(comment: str) -> str:
    """Text of a comment beside the exceptions."""
    return EXCEPTION.sub("", comment).strip(" #-")
