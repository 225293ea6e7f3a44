"""Reader of pickles that consist of literals: None, booleans, numbers, texts, lists, tuples, dictionaries.

A pickle is a program: opcodes such as GLOBAL, REDUCE and BUILD make the process that loads it call any function. This
reader has the opcodes of literals in protocol 2, which PyTorch writes (torch/csrc/jit/serialization/pickler.cpp), and no
other; it imports nothing and calls nothing that the pickle names.

A value may be contained in itself or many times: readers of the result walk it to a fixed depth and length.
"""

from __future__ import annotations

import struct
from typing import Any

from railscope_agent.collectives import CollectiveFormatError

MAX_OPCODES = 500_000
"""A dump of 2,000 collectives with stacks has 250,000. Each creates at most one object of some 60 bytes; all take a second."""
MAX_INTEGER_BYTES = 8
MAX_MEMO = 1 << 20
_PROTOCOL = 2


class _LiteralReader:
    """One pickle: its stack, the stacks below each mark, and its memo."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._position = 0
        self._stack: list[Any] = []
        self._outer: list[list[Any]] = []
        self._memo: dict[int, Any] = {}

    def read(self) -> object:
        """Run the opcodes up to STOP, and return the value on the stack."""
        for _ in range(MAX_OPCODES):
            at = self._position
            opcode = self._take(1)
            if opcode == b".":
                return self._only_value()
            operation = _OPERATIONS.get(opcode)
            if operation is None:
                message = f"opcode {opcode!r} at byte {at}: expected one of a literal"
                raise CollectiveFormatError(message)
            operation(self)
        message = f"more than {MAX_OPCODES} opcodes"
        raise CollectiveFormatError(message)

    def _only_value(self) -> object:
        if len(self._stack) != 1 or self._outer:
            message = f"{len(self._stack)} values at the end: expected 1"
            raise CollectiveFormatError(message)
        return self._stack[0]

    def _take(self, length: int) -> bytes:
        start, self._position = self._position, self._position + length
        # A slice beyond the end would be shorter than required, without an error.
        if self._position > len(self._content):
            message = f"truncated pickle: {len(self._content)} bytes"
            raise CollectiveFormatError(message)
        return self._content[start : self._position]

    def _number(self, layout: str) -> int:
        number: int = struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        return number

    def take_last(self, count: int) -> list[Any]:
        """Remove and return the last values of the stack."""
        if count > len(self._stack):
            message = f"{len(self._stack)} values on the stack: expected {count}"
            raise CollectiveFormatError(message)
        values = self._stack[len(self._stack) - count :]
        del self._stack[len(self._stack) - count :]
        return values

    def _since_mark(self) -> list[Any]:
        """Remove and return the values since the last mark, and the mark."""
        if not self._outer:
            message = "no mark on the stack"
            raise CollectiveFormatError(message)
        values, self._stack = self._stack, self._outer.pop()
        return values

    def _container(self, kind: type[list[Any] | dict[str, Any]]) -> Any:
        """Return the container on top of the stack."""
        if not self._stack or type(self._stack[-1]) is not kind:
            message = f"expected a {kind.__name__} on the stack"
            raise CollectiveFormatError(message)
        return self._stack[-1]

    def check_protocol(self) -> None:
        """PROTO: accept protocol 2."""
        version = self._number("<B")
        if version != _PROTOCOL:
            message = f"pickle protocol {version}: expected {_PROTOCOL}"
            raise CollectiveFormatError(message)

    def push_mark(self) -> None:
        """MARK: begin a list of values."""
        self._outer.append(self._stack)
        self._stack = []

    def push(self, value: object) -> None:
        """Push a value."""
        self._stack.append(value)

    def push_number(self, layout: str) -> None:
        """Push a number of fixed length."""
        self.push(self._number(layout))

    def push_long(self) -> None:
        """LONG1: push an integer of up to 64 bits."""
        length = self._number("<B")
        if length > MAX_INTEGER_BYTES:
            message = f"integer of {length} bytes: expected at most {MAX_INTEGER_BYTES}"
            raise CollectiveFormatError(message)
        self.push(int.from_bytes(self._take(length), "little", signed=True))

    def push_text(self) -> None:
        """BINUNICODE: push a text; bytes that are not UTF-8 become surrogates."""
        self.push(self._take(self._number("<I")).decode(errors="surrogateescape"))

    def push_tuple(self, count: int) -> None:
        """TUPLE1 to TUPLE3: replace values by a tuple of them."""
        self.push(tuple(self.take_last(count)))

    def push_marked_tuple(self) -> None:
        """TUPLE: replace the values since the mark by a tuple."""
        self.push(tuple(self._since_mark()))

    def append(self, values: list[Any]) -> None:
        """APPEND, APPENDS: append values to a list."""
        self._container(list).extend(values)

    def append_marked(self) -> None:
        """APPENDS: append the values since the mark."""
        self.append(self._since_mark())

    def set_marked(self) -> None:
        """SETITEMS: set the keys and values since the mark."""
        self.set_items(self._since_mark())

    def set_items(self, values: list[Any]) -> None:
        """SETITEM, SETITEMS: set keys and values in a dictionary; keys are texts."""
        keys = values[::2]
        # Other keys may be unhashable, and the hash of nested tuples takes time that grows with their depth.
        if len(values) % 2 or set(map(type, keys)) - {str}:
            message = "expected pairs of a text and a value"
            raise CollectiveFormatError(message)
        self._container(dict).update(zip(keys, values[1::2], strict=True))

    def store(self, layout: str) -> None:
        """BINPUT, LONG_BINPUT: store the last value in the memo."""
        place = self._number(layout)
        if not self._stack or place >= MAX_MEMO:
            message = f"invalid memo entry {place}"
            raise CollectiveFormatError(message)
        self._memo[place] = self._stack[-1]

    def fetch(self, layout: str) -> None:
        """BINGET, LONG_BINGET: push a value of the memo."""
        place = self._number(layout)
        if place not in self._memo:
            message = f"no memo entry {place}"
            raise CollectiveFormatError(message)
        self.push(self._memo[place])


_OPERATIONS: dict[bytes, Any] = {
    b"\x80": _LiteralReader.check_protocol,
    b"(": _LiteralReader.push_mark,
    b"}": lambda reader: reader.push({}),
    b"]": lambda reader: reader.push([]),
    b")": lambda reader: reader.push(()),
    b"N": lambda reader: reader.push(None),
    b"\x88": lambda reader: reader.push(True),  # noqa: FBT003 - the value
    b"\x89": lambda reader: reader.push(False),  # noqa: FBT003 - the value
    b"K": lambda reader: reader.push_number("<B"),
    b"M": lambda reader: reader.push_number("<H"),
    b"J": lambda reader: reader.push_number("<i"),
    b"G": lambda reader: reader.push_number(">d"),
    b"\x8a": _LiteralReader.push_long,
    b"X": _LiteralReader.push_text,
    b"t": _LiteralReader.push_marked_tuple,
    b"\x85": lambda reader: reader.push_tuple(1),
    b"\x86": lambda reader: reader.push_tuple(2),
    b"\x87": lambda reader: reader.push_tuple(3),
    b"a": lambda reader: reader.append(reader.take_last(1)),
    b"e": _LiteralReader.append_marked,
    b"s": lambda reader: reader.set_items(reader.take_last(2)),
    b"u": _LiteralReader.set_marked,
    b"q": lambda reader: reader.store("<B"),
    b"r": lambda reader: reader.store("<I"),
    b"h": lambda reader: reader.fetch("<B"),
    b"j": lambda reader: reader.fetch("<I"),
}
ACCEPTED = frozenset((*_OPERATIONS, b"."))
"""All accepted opcodes: pickletools, protocol 2."""


def read_literals(content: bytes) -> object:
    """Return the value of a pickle of literals. Raises CollectiveFormatError for any other one."""
    return _LiteralReader(content).read()
