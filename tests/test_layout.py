"""The check of the layout finds shared class names and long modules, and counts imports."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from layout import (
    MAX_MODULE_LINES,
    MAX_MODULES,
    Module,
    figures,
    imports,
    impure_calls,
    parse_module,
    product_modules,
    pure_modules,
    shared_names,
    sizes,
)
from wording import ROOT

SOURCE = """\
import os
from x import (
    A,
    B,
)
class Outer:
    class Inner:
        import late
def f():
    class Local: ...
"""


def module(path: str = "agent/x.py", line_count: int = 1, *classes: str) -> Module:
    return Module(path, line_count, 0, tuple((name, 7) for name in classes))


def test_lines_of_imports_and_nested_classes_are_counted() -> None:
    assert parse_module("agent/x.py", SOURCE) == Module(
        "agent/x.py", 10, 6, (("Outer", 6), ("Inner", 7), ("Local", 10))
    )
    assert "1 modules" in figures([module()])
    assert "0.00%" in figures([])


def test_a_class_name_that_exists_twice_is_named_with_its_places() -> None:
    modules = [module("agent/x.py", 1, "Job", "Gpu"), module("agent/y.py", 1, "Job")]
    assert list(shared_names(modules, {})) == [
        "agent/x.py:7: class name 'Job' exists again in agent/y.py:7"
    ]
    assert list(shared_names(modules, {"Job": "mirror of a wire type"})) == []
    twice_in_one = [module("agent/x.py", 1, "Job", "Job")]
    assert len(list(shared_names(twice_in_one, {}))) == 1


def test_an_exception_without_use_is_a_problem() -> None:
    (found,) = shared_names([module("agent/x.py", 1, "Job")], {"Job": "no longer"})
    assert "exception in docs/layout.py: 'Job'" in found


@pytest.mark.parametrize(("extra", "problems"), [(0, 0), (1, 1)])
def test_the_limits_are_the_greatest_allowed_values(extra: int, problems: int) -> None:
    assert len(list(sizes([module(line_count=MAX_MODULE_LINES + extra)]))) == problems
    many = [module(f"agent/x{number}.py") for number in range(MAX_MODULES + extra)]
    assert len(list(sizes(many))) == problems


@pytest.mark.parametrize(("import_line_count", "problems"), [(0, 0), (4, 0), (5, 1)])
def test_the_share_of_imports_is_below_its_limit(import_line_count: int, problems: int) -> None:
    modules = [Module("agent/x.py", 40, import_line_count, ()), module("agent/y.py", 60)]
    assert len(list(imports(modules))) == problems
    assert list(imports([])) == []


def unformatted_statements(path: Path) -> list[ast.stmt]:
    """The innermost statement at each line that the formatter skips."""
    text = path.read_text()
    lines = [n for n, line in enumerate(text.splitlines(), 1) if line.endswith("# fmt: skip")]
    statements = (
        [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)] if lines else []
    )
    return [
        max(
            (
                statement
                for statement in statements
                if statement.lineno <= line <= (statement.end_lineno or 0)
            ),
            key=lambda one: one.lineno,
        )
        for line in lines
    ]


@pytest.mark.parametrize(
    "call",
    ["open('x')", "datetime.now(UTC)", "dt.datetime.now()", "date.today()", "path.read_text()"],
)
def test_a_clock_or_a_file_of_a_pure_module_is_a_problem(call: str) -> None:
    assert list(impure_calls("collector/views/x.py", f"def f():\n    return {call}")) == [
        f"collector/views/x.py:2: {call.partition('(')[0].rpartition('.')[2]}() in a pure module: expected values as arguments"
    ]


def test_pure_modules_are_those_of_the_contract() -> None:
    found = {str(path.relative_to(ROOT)) for path in pure_modules(ROOT)}
    assert {"collector/billing/rating.py", "collector/views.py"} < found


def is_table(statement: ast.stmt) -> bool:
    """A constant, or rows that a function yields or iterates over."""
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return statement.col_offset == 0
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.YieldFrom):
        return isinstance(statement.value.value, ast.Tuple)
    return isinstance(statement, ast.For)


def test_the_formatter_skips_only_tables() -> None:
    found = [
        f"{module.path}:{statement.lineno}"
        for module in product_modules(ROOT)
        for statement in unformatted_statements(ROOT / module.path)
        if not is_table(statement)
    ]
    assert found == []
