"""Pure packages read no clock, file or terminal; contracts of imports do not see built-in functions and methods."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
IMPURE_CALLS = {
    "open", "input", "print", "now", "utcnow", "today", "read_text", "write_text", "read_bytes", "write_bytes",
}  # fmt: skip


def pure_modules() -> Iterator[Path]:
    """The modules of the contract of pure packages."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (names,) = (
        each["source_modules"] for each in contracts["contracts"] if " pure: " in each["name"]
    )
    for name in names:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        path = Path(spec.origin)
        yield from sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]


def impure_calls(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in IMPURE_CALLS:
                yield f"{node.lineno}: {name}()"


def test_pure_modules_get_values_as_arguments() -> None:
    modules = list(pure_modules())
    assert len(modules) > 30
    found = {path: list(impure_calls(path.read_text())) for path in modules}
    assert {path: calls for path, calls in found.items() if calls} == {}
