"""Check of the layout: names of classes, sizes of modules, lines of imports, calls of pure modules.

Prints the figures of the product and every problem. What a name may be is checked by `wording.py`.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from wording import PACKAGES, ROOT

MAX_MODULES = 671
"""Raised only by a change whose subject is in no module yet: others belong where their subject is."""
MAX_MODULE_LINES = 450
IMPORT_LIMIT = 0.05
"""Share of the lines that imports must stay below."""

IMPURE_CALLS = frozenset(
    (
        "open",
        "input",
        "print",
        "now",
        "utcnow",
        "today",
        "read_text",
        "write_text",
        "read_bytes",
        "write_bytes",
    )
)
"""Functions and methods that read a clock, a file or the terminal without an import of their own."""

SHARED_CLASS_NAMES: Mapping[str, str] = {}
"""Class names that may exist more than once, each with its reason."""


@dataclass(frozen=True)
class Module:
    """Layout of one module; a class is its name and its line."""

    path: str
    line_count: int
    import_line_count: int
    classes: tuple[tuple[str, int], ...]


def parse_module(path: str, text: str) -> Module:
    """Return the layout of a module, with its nested classes."""
    nodes = list(ast.walk(ast.parse(text)))
    return Module(
        path,
        len(text.splitlines()),
        sum(
            (node.end_lineno or node.lineno) - node.lineno + 1
            for node in nodes
            if isinstance(node, ast.Import | ast.ImportFrom)
        ),
        tuple((node.name, node.lineno) for node in nodes if isinstance(node, ast.ClassDef)),
    )


def product_modules(root: Path) -> Iterator[Module]:
    """Yield every module of the product."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield parse_module(str(path.relative_to(root)), path.read_text())


def shared_names(modules: Iterable[Module], allowed: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each class name that exists twice, and for each exception without use."""
    places = defaultdict(list)
    for module in modules:
        for name, line in module.classes:
            places[name].append(f"{module.path}:{line}")
    for name, found in sorted(places.items()):
        if len(found) > 1 and name not in allowed:
            yield f"{found[0]}: class name {name!r} exists again in {', '.join(found[1:])}"
    for name in sorted(allowed):
        if len(places[name]) < 2:  # noqa: PLR2004 - a name is shared by two
            yield f"outdated exception in docs/layout.py: {name!r}: expected two classes of this name"


def sizes(modules: Sequence[Module]) -> Iterator[str]:
    """Yield a line for each module that is too long, and for too many modules."""
    for module in modules:
        if module.line_count > MAX_MODULE_LINES:
            lines = f"{module.line_count} lines: expected at most {MAX_MODULE_LINES}"
            yield f"{module.path}: {lines}; fix: divide the module by subject"
    if len(modules) > MAX_MODULES:
        yield f"{len(modules)} modules: expected at most {MAX_MODULES}; fix: merge small modules"


def pure_modules(root: Path) -> Iterator[Path]:
    """Yield the modules of the contract of pure packages."""
    contracts = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    for contract in contracts["contracts"]:
        if " pure: " in contract["name"]:
            for name in contract["source_modules"]:
                place = root / name.replace(".", "/")
                yield from (
                    sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
                )


def impure_calls(path: str, text: str) -> Iterator[str]:
    """Yield a line for each call of a clock, a file or the terminal; contracts only see imports."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in IMPURE_CALLS:
            yield f"{path}:{node.lineno}: {name}() in a pure module: expected values as arguments"


def imports(modules: Sequence[Module]) -> Iterator[str]:
    """Yield a line if the share of import lines is not below its limit."""
    if (share := _import_share(modules)) >= IMPORT_LIMIT:
        found = f"imports {share:.2%} of lines: expected less than {IMPORT_LIMIT:.0%}"
        yield f"{found}; fix: merge small modules, or import modules instead of their names"


def _import_share(modules: Sequence[Module]) -> float:
    lines = sum(module.line_count for module in modules)
    return sum(module.import_line_count for module in modules) / max(lines, 1)


def figures(modules: Sequence[Module]) -> str:
    """Return the number of modules, their lines, and the share of imports, in one line."""
    lines = sum(module.line_count for module in modules)
    classes = sum(len(module.classes) for module in modules)
    return (
        f"{len(modules)} modules (at most {MAX_MODULES}), {lines} lines, {classes} classes, "
        f"imports {_import_share(modules):.2%} of lines (below {IMPORT_LIMIT:.0%})"
    )


def main() -> int:
    """Print the figures and every problem; return 1 if there is a problem."""
    modules = list(product_modules(ROOT))
    impure = (
        line
        for path in pure_modules(ROOT)
        for line in impure_calls(str(path.relative_to(ROOT)), path.read_text())
    )
    found = [
        *shared_names(modules, SHARED_CLASS_NAMES),
        *sizes(modules),
        *imports(modules),
        *impure,
    ]
    for line in (figures(modules), *found):
        click.echo(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
