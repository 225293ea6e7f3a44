"""TOML of administrators: one error for every text that is not usable."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given, strategies as st

from railscope.untrusted_text import MAX_BYTES, MAX_DEPTH, TomlError, parse_toml

HOSTILE = [
    ("x = " + "9" * 5000, "value out of range"),
    ("x = 0x" + "f" * 5000, "x: number of 20000 bits"),
    ("x = 9223372036854775808", "x: number of 64 bits: expected at most 64, signed"),
    ("[a]\nb = [{ c = -9223372036854775809 }]", "a.b.c: number of 64 bits"),
    ("x = " + "[" * 5000, "nested too deeply"),
    ("x = " + "{ y = " * 5000, "nested too deeply"),
    (".".join("a" * 5000) + " = 1", "nested too deeply"),
    ("x = " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested too deeply"),
    ('x = "/tmp/\\u0000x"', "x: '/tmp/\\x00x': expected a string without NUL"),
    ('"a\\u0000" = 1', "invalid key"),
    ("x = 2026-13-01", "at line 1"),
    ("x = 2026-01-01T00:00:00+99:00", "line 1"),
    ("x = ", "Invalid value"),
    ("#" * (MAX_BYTES + 1), "expected at most"),
]


@pytest.mark.parametrize(("text", "reason"), HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_text_is_one_error(text: str, reason: str) -> None:
    with pytest.raises(TomlError) as raised:
        parse_toml(text)
    assert reason in str(raised.value)
    assert len(str(raised.value)) < 500


@given(st.text(alphabet="ab.=[]{}\"\\u0\n '#,-:T9x1", max_size=40))
def test_any_text_is_read_as_tomllib_reads_it_or_is_one_error(text: str) -> None:
    try:
        found = parse_toml(text)
    except TomlError:
        return
    assert found == tomllib.loads(text)
