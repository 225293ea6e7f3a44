"""The one line of the official validator that Python 3.11 cannot parse, and its replacement."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import pytest

RESPELL = runpy.run_path(str(Path(__file__).parents[2] / "validator" / "respell.py"))


def expected_text(expression: str, keys: list[str]) -> object:
    return eval(expression, {"ignore_keys": keys})  # noqa: S307 - the line itself is on trial


def test_the_new_line_means_what_the_old_one_does():
    keys = ["plain", 'with "quotes"', "with 'single ones'"]
    expected = ", ".join("'{}'".format(key.replace('"', '""')) for key in keys)
    assert expected_text(RESPELL["RESPELLED"], keys) == expected
    if sys.version_info >= (3, 12):
        assert expected_text(RESPELL["WRITTEN"], keys) == expected
    else:
        with pytest.raises(SyntaxError):
            ast.parse(RESPELL["WRITTEN"])


def test_only_the_line_is_changed_and_only_where_it_is(tmp_path: Path):
    path = tmp_path / RESPELL["MODULE"]
    path.parent.mkdir(parents=True)
    text = f"x = (\n    {RESPELL['WRITTEN']}\n)\n"
    path.write_text(text)
    for _ in range(2):
        assert RESPELL["main"](tmp_path) == 0
        assert path.read_text() == f"x = (\n    {RESPELL['RESPELLED']}\n)\n"
    for other in ("x = 1\n", text * 2):
        path.write_text(other)
        assert RESPELL["main"](tmp_path) == 1
        assert path.read_text() == other
