"""The check of wording names each word to replace with its place, and nothing in plain text."""

from __future__ import annotations

import pytest
from wording import problems, source_problems, subject_problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('"""Result that is told once."""', "x.py:1: 'told': write report, state, contain"),
        ('x = 1\n"""Folder of the spool."""', "x.py:2: 'Folder': write directory"),
        ("x = 1\n# as the driver\n# says", "x.py:3: 'says': write state, report, contain"),
        ("MOST_EVENTS = 1", "x.py:1: 'MOST_EVENTS': write max_, min_"),
        ("def f(least_bytes): ...", "x.py:1: 'least_bytes': write max_, min_"),
        ("def folder_of(): ...", "x.py:1: 'folder_of': write directory"),
    ],
)
def test_a_word_in_a_module_is_named_with_its_line(text: str, problem: str) -> None:
    assert list(source_problems("x.py", text)) == [problem]


@pytest.mark.parametrize(
    "text",
    [
        '"""Return the module `told`, or "says" as it is quoted."""',
        'x = "told"',
        "found = counts.most_common(1)",
        "almost_full = folderUid = 1",
    ],
)
def test_quotations_and_other_names_have_no_problem(text: str) -> None:
    assert list(source_problems("x.py", text)) == []


def test_a_document_is_checked_without_code_and_quotations() -> None:
    text = """\
The agent reports `told` and "what it says", and [a link](told/says.md).

```sh
echo told
```

> A quotation says so.

| a | the collector tells |
"""
    assert list(problems("x.md", 1, text)) == ["x.md:9: 'tells': write report, state, contain"]


@pytest.mark.parametrize(
    ("subject", "count"),
    [
        ("agent: read NIC settings", 0),
        (f"agent: {'x' * 65}", 0),
        (f"agent: {'x' * 66}", 1),
        ("Read NIC settings", 1),
    ],
)
def test_the_form_of_a_subject(subject: str, count: int) -> None:
    assert len(list(subject_problems("abc", subject))) == count
