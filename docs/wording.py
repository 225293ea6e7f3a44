"""Check of the wording of docstrings and names: plain technical English in the terms of docs/glossary.md."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
PACKAGES = ("agent", "collector", "railscope", "simulator", "bench", "dashboards")
OPENERS = re.compile(r"\s*(What|Who|Whose|Whom|Whether|How|Where|When|Which|Why)\b")
WORDS = {
    re.compile(rf"\b({pattern})\b", re.IGNORECASE): remedy
    for pattern, remedy in {
        r"tells?|told|telling": "report, state, contain, distinguish",
        r"says?|said|saying": "state, report, contain",
        r"whoever|nobody|somebody|whom": "name the component; these are for people only",
        r"folders?": "directory",
        r"anew|for ever|for good": "again, permanently",
    }.items()
}
IDENTIFIERS = {
    re.compile(r"^_?(most|least)_(?!common\b)", re.IGNORECASE): "max_, min_",
    re.compile(r"folder", re.IGNORECASE): "directory",
}
_CODE = re.compile(r"`[^`]*`|\"[^\"]*\"")
_FOREIGN = {"folderUid"}
"""Names that other programs give: Grafana's dashboard model."""


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring, those of attributes included."""
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of every identifier that is bound."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.lineno, node.name
            case ast.arg():
                yield node.lineno, node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.lineno, node.id


def problems(place: str, source: str) -> Iterator[str]:
    """Yield a line for each docstring and each name of a module that breaks a rule."""
    tree = ast.parse(source)
    for line, text in docstrings(tree):
        if opener := OPENERS.match(text):
            yield f"{place}:{line}: docstring starts with {opener[1]!r}: expected a noun or a verb"
        plain = _CODE.sub("", text)
        for pattern, remedy in WORDS.items():
            if found := pattern.search(plain):
                yield f"{place}:{line}: docstring contains {found[0]!r}: write {remedy}"
    for line, name in names(tree):
        for pattern, remedy in IDENTIFIERS.items():
            if name not in _FOREIGN and pattern.search(name):
                yield f"{place}:{line}: name {name!r}: write {remedy}"


def main() -> int:
    """Print every problem; return 1 if there is one."""
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found = [
        problem
        for path in paths
        for problem in problems(str(path.relative_to(ROOT)), path.read_text())
    ]
    for problem in found:
        click.echo(problem)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
