"""The check of the layout finds shared class names and long modules, and counts imports."""

from __future__ import annotations

import pytest
from layout import (
    MAX_MODULE_LINES,
    MAX_MODULES,
    Module,
    figures,
    imports,
    parse_module,
    shared_names,
    sizes,
)

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
