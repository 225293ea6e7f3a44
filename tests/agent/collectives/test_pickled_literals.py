"""Pickles of literals are read like pickle does; pickles that run code are rejected, and nothing runs."""

from __future__ import annotations

import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st

from railscope_agent.collectives import CollectiveFormatError, pickled_literals
from railscope_agent.collectives.pickled_literals import read_literals

DUMPS = Path(__file__).parent / "dumps"
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
SCALARS = st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | st.text()
LITERALS = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(), inner) | st.lists(inner, max_size=4).map(tuple)
    ),
    max_leaves=40,
)


class RunsCode:
    """An object whose pickle calls a function when it is loaded."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._file,)


@given(LITERALS)
def test_literals_are_read_as_by_pickle(value: object) -> None:
    assert read_literals(pickle.dumps(value, protocol=2)) == value


def test_a_pickle_that_calls_a_function_is_rejected_and_calls_nothing(tmp_path: Path) -> None:
    file = tmp_path / "called"
    with pytest.raises(CollectiveFormatError, match="opcode b'c' at byte 2"):
        read_literals(pickle.dumps(RunsCode(file), protocol=2))
    assert not file.exists()


@pytest.mark.parametrize(
    "opcode",
    [opcode for opcode in pickletools.opcodes if opcode.code.encode("latin-1") not in pickled_literals.ACCEPTED],
    ids=lambda opcode: opcode.name,
)  # fmt: skip
def test_every_other_opcode_is_rejected(opcode: pickletools.OpcodeInfo) -> None:
    with pytest.raises(CollectiveFormatError, match="expected one of a literal"):
        read_literals(b"\x80\x02" + opcode.code.encode("latin-1") + b"os\nsystem\n.")


def test_no_accepted_opcode_runs_code() -> None:
    accepted = {
        o.name for o in pickletools.opcodes if o.code.encode("latin-1") in pickled_literals.ACCEPTED
    }
    assert accepted == {
        "PROTO", "STOP", "MARK", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "NONE", "NEWTRUE", "NEWFALSE",
        "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
        "APPEND", "APPENDS", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
    }  # fmt: skip


@given(st.binary(max_size=200))
@example(b"")
@example(b"\x80\x04.")
@example(b"(((((.")
@example(b"]}s.")
@example(b"]q\x00h\x01.")
@example(b"\x8a\xff" + b"\xff" * 300)
@example(b"X\xff\xff\xff\xffabc.")
@example(b"}(]K\x01u.")
def test_any_other_bytes_are_rejected(content: bytes) -> None:
    try:
        read_literals(content)
    except CollectiveFormatError:
        return
    assert content.count(b".") > 0  # a complete pickle of a literal


@given(st.data())
def test_a_truncated_dump_is_rejected(data: st.DataObject) -> None:
    content = (DUMPS / "missing" / "rank_0").read_bytes()
    length = data.draw(st.integers(0, len(content) - 1))
    with pytest.raises(CollectiveFormatError):
        read_literals(content[:length])
