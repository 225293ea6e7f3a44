"""Test modules for `make quick`: those that use no program, ledger, whole service, recorded or simulated node or cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

_TESTS = Path(__file__).parent.parent
_SLOW = re.compile(
    r"(subprocess|railscope_simulator|railscope_collector\.(ledger|live_diagnosis|service)"
    r"|railscope_agent\.(service|host\.recorded_host)|support\.drawn_\w+)\b"
)
"""Imports of a module, or of helpers that it imports, by which its tests take seconds."""
_IMPORT = re.compile(r"^(?:from|import) ([\w.]+)(?: import (?:\(([^)]*)\)|(.*)))?", re.MULTILINE)


@cache
def _helpers() -> dict[str, Path]:
    """Return the files that test modules import, by name: packages of `tests`, and modules in directories of it."""
    found = dict[str, Path]()
    for path in _TESTS.rglob("*.py"):
        found[path.stem] = path
        found[".".join(path.relative_to(_TESTS).with_suffix("").parts)] = path
    return found


def _imports(path: Path) -> Iterator[str]:
    for module, *names in _IMPORT.findall(path.read_text()):
        yield module
        for name in re.findall(r"\w+", " ".join(names)):
            yield f"{module}.{name}"


def _uses_slow(path: Path) -> bool:
    seen, left = set[Path](), [path]
    while left:
        if (each := left.pop()) in seen:
            continue
        seen.add(each)
        for name in _imports(each):
            if _SLOW.match(name):
                return True
            if helper := _helpers().get(name.removeprefix("tests.")):
                left.append(helper)
    return False


def quick_modules(paths: Iterable[Path]) -> list[Path]:
    """Return the modules among these whose tests take milliseconds."""
    return [path for path in paths if not _uses_slow(path)]
