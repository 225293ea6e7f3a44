"""The check of wording finds what it is for, and nothing in plain text."""

from __future__ import annotations

import pytest
from wording import problems

BAD = {
    '"""What came of a read."""': "starts with 'What'",
    '"""Result that is told once."""': "'told'",
    '"""Reason, as the driver says."""': "'says'",
    '"""Value that nobody reads."""': "'nobody'",
    'x = 1\n"""Folder of the spool."""': "'Folder'",
    "most_bytes = 1": "'most_bytes'",
    "def f(folder): ...": "'folder'",
    "MOST_EVENTS = 1": "'MOST_EVENTS'",
}


@pytest.mark.parametrize("source", BAD)
def test_a_broken_rule_is_named_with_its_place(source: str) -> None:
    found = list(problems("agent/x.py", source))
    assert len(found) == 1
    assert found[0].startswith("agent/x.py:")
    assert BAD[source] in found[0]


@pytest.mark.parametrize(
    "source",
    [
        '"""Return the module `told`, or "says" as it is quoted."""',
        "found = counts.most_common(1)",
        "almost_full = max_bytes = 1",
    ],
)
def test_plain_text_has_no_problem(source: str) -> None:
    assert list(problems("agent/x.py", source)) == []
