"""Updates of gNMI: notifications in, leaves by path out.

The leaves that a table of facts names are kept, and nothing else: what a switch sends beyond them costs no memory. The
path of the answer decides, since some switches answer elsewhere than requested. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Final, TypeAlias

from railscope import untrusted_text
from railscope.reading import Absent
from railscope_collector.switches import gnmi_messages, switch_reading as base

MAX_STEPS = 2_000_000
"""Elements of one poll that are visited: 512 ports with 10 queues have 150,000 leaves below 8 elements each."""
MAX_LEAVES = 150_000
MAX_LIST = 64
"""Values of a leaf-list, such as the lanes of a port."""
_MAX_BYTES = 8
"""Bytes of a floating-point number; longer values are no number."""
_MAX_PRECISION = 18
"""Digits after the point of a decimal64 (RFC 7950, 9.3.4)."""
_MODULE = re.compile(r"[A-Za-z_][\w.-]*:(?=.)")
"""Module before a name, such as `openconfig-interfaces:` or `oc-if:`. An address as a name begins with a digit or has two colons."""
_ELEMENT = re.compile(r"([^\[]+)(?:\[(.+)\])?")

Leaf: TypeAlias = "str | int | float | Decimal | bool | bytes | Absent | tuple[object, ...]"
"""Value of a leaf as the switch sent it; ERROR if it is of a kind that no leaf of a table has."""
Keys: TypeAlias = tuple[str, ...]
Element: TypeAlias = tuple[str, Mapping[str, str]]
"""Name of an element, without its module, and its keys."""


# Paths -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class PathNode:
    """Element of the paths of a table, such as `interface[name]`."""

    children: dict[str, PathNode] = field(default_factory=dict)
    keys: tuple[Keys, ...] = ()
    """Names of the keys, if it is an entry of a list; models may name the same number of keys differently."""
    leaf: str = ""
    """The whole path, if it is one of the table."""

    def key_values(self, given: Mapping[str, object]) -> list[str | None]:
        """Return the values of the keys, None for each one that is not given."""
        found = [[_key(given.get(key)) for key in keys] for keys in self.keys]
        return next((values for values in found if None not in values), found[0] if found else [])

    def leaves(self) -> Iterator[str]:
        """Yield the paths of the table at and below this element."""
        if self.leaf:
            yield self.leaf
        for child in self.children.values():
            yield from child.leaves()


def build_tree(paths: Iterable[str]) -> PathNode:
    """Return the root of the paths of a table."""
    root = PathNode()
    for path in paths:
        node = root
        for element in path.split("/"):
            matched = _ELEMENT.fullmatch(element)
            assert matched, path  # noqa: S101 - a constant
            name, keys = matched.groups()
            node = node.children.setdefault(name, PathNode())
            if keys:
                node.keys = tuple(dict.fromkeys((*node.keys, tuple(keys.split("][")))))
        node.leaf = path
    return root


def local_name(name: str) -> str:
    """Return a name without its module."""
    matched = _MODULE.match(name) if ":" in name else None
    return name if not matched or ":" in name[matched.end() :] else name[matched.end() :]


def join_paths(prefix: Any, path: Any) -> list[Element]:
    """Return the elements of a prefix and a path. An element without a name has keys of its predecessor (Junos)."""
    elements: list[Element] = []
    for element in (*prefix.elem, *path.elem):
        if element.name or not elements:
            elements.append((local_name(element.name), element.key))
        else:
            name, keys = elements[-1]
            elements[-1] = name, {**keys, **element.key}
    return elements


# Values ------------------------------------------------------------------------------------------


def read_value(value: Any) -> Any:
    """Return the value of an update: a leaf, or an object or list of JSON; ERROR for a kind without use here.

    Raises SwitchReadError if the text of JSON is invalid.
    """
    kind = value.WhichOneof("value")
    if kind in {"json_val", "json_ietf_val"}:
        return gnmi_messages.decode_json(getattr(value, kind), Any)
    if kind == "decimal_val":
        digits, precision = value.decimal_val.digits, value.decimal_val.precision
        return Decimal(digits).scaleb(-precision) if precision <= _MAX_PRECISION else Absent.ERROR
    if kind == "leaflist_val":
        found = value.leaflist_val.element[:MAX_LIST]
        return [
            Absent.ERROR if each.HasField("leaflist_val") else read_value(each) for each in found
        ]
    if kind in {None, "any_val", "proto_bytes"}:
        return Absent.ERROR
    return getattr(value, kind)


def _bounded(value: object) -> Leaf:
    if isinstance(value, str):
        return value[: base.MAX_TEXT + 1]
    if isinstance(value, bytes):
        return value if len(value) <= _MAX_BYTES else Absent.ERROR
    if isinstance(value, list):
        return tuple(map(_bounded, value[:MAX_LIST]))
    is_leaf = isinstance(value, bool | int | float | Decimal | Absent)
    return value if is_leaf else Absent.ERROR  # type: ignore[return-value]  # checked


# Leaves ------------------------------------------------------------------------------------------

_Rows: TypeAlias = dict[str, dict[str, dict[Keys, Leaf]]]


@dataclass(slots=True)
class Leaves:
    """Leaves of one poll: by the first key of their path (port, component), path, and further keys."""

    tree: Final[PathNode]
    max_leaves: int = MAX_LEAVES
    max_steps: int = MAX_STEPS
    newest_ns: int = 0
    """Time of the newest notification, by the clock of the switch."""
    _rows: _Rows = field(default_factory=dict)
    _steps: int = 0
    _count: int = 0

    def names(self, paths: Iterable[str]) -> list[str]:
        """Return the first keys that have a leaf at one of these paths."""
        wanted = frozenset(paths)
        return [name for name, row in self._rows.items() if not wanted.isdisjoint(row)]

    def get(self, path: str, name: str = "", *more: str) -> Leaf | None:
        """Return a leaf by the keys of its path; None if the switch did not send it."""
        return self._rows.get(name, {}).get(path, {}).get(more)

    def more_keys(self, path: str, name: str) -> Iterable[Keys]:
        """Return the further keys of the leaves at a path."""
        return self._rows.get(name, {}).get(path, {}).keys()

    def has(self, paths: Iterable[str]) -> bool:
        """True if a leaf is at one of these paths."""
        return bool(self.names(paths))

    def apply(self, notification: Any) -> None:
        """Take the updates. Raises SwitchReadError at a bound, or if a text of JSON is invalid.

        Deletions have no meaning here: they follow the state of the switch, with which a poll ends.
        """
        self.newest_ns = max(self.newest_ns, notification.timestamp)
        for update in notification.update:
            self._update(join_paths(notification.prefix, update.path), update.val)

    def _update(self, elements: Sequence[Element], typed: Any) -> None:
        self._spend(len(elements) + 1)
        node, found = self.tree, list[str]()
        for position, (name, given) in enumerate(elements):
            child = node.children.get(name)
            if child is None:
                return
            node = child
            values = node.key_values(given) if node.keys else []
            if None not in values:
                found += [value or "" for value in values]
            elif position == len(elements) - 1:  # the keys may be in the value
                self._store_entries(node, found, read_value(typed))
                return
            else:
                return
        self._store(node, found, read_value(typed))

    def _store(self, node: PathNode, keys: list[str], value: object) -> None:
        self._spend(1)
        if node.leaf:
            self._put(node.leaf, keys, _bounded(value))
        elif isinstance(value, dict):
            for name, inner in value.items():
                child = node.children.get(local_name(name))
                if child and child.keys:
                    self._store_entries(child, keys, inner)
                elif child:
                    self._store(child, keys, inner)

    def _store_entries(self, node: PathNode, keys: list[str], value: object) -> None:
        """Store the entries of a list; each contains its keys."""
        for entry in value if isinstance(value, list) else [value]:
            self._spend(1)
            if not isinstance(entry, dict):
                continue
            values = node.key_values({local_name(name): inner for name, inner in entry.items()})
            if None not in values:
                self._store(node, [*keys, *(value or "" for value in values)], entry)

    def _put(self, path: str, keys: list[str], leaf: Leaf) -> None:
        first, more = (keys[0], tuple(keys[1:])) if keys else ("", ())
        leaves = self._rows.setdefault(first, {}).setdefault(path, {})
        if more not in leaves:
            self._count += 1
            if self._count > self.max_leaves:
                text = f"too many values in a poll: expected at most {self.max_leaves}"
                raise base.SwitchReadError(text, "limit")
        leaves[more] = leaf

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > self.max_steps:
            text = f"too much data in a poll: expected at most {self.max_steps} elements"
            raise base.SwitchReadError(text, "limit")


def _key(value: object) -> str | None:
    """Return a key as printable text of limited length; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return base.cut_text(untrusted_text.printable(str(value)[: base.MAX_TEXT]))
