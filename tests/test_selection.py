"""Tests that `make quick` and the mutation test select."""

from __future__ import annotations

from pathlib import Path

import mutation
import pytest
from support.quick_modules import quick_modules

TESTS = Path(__file__).parent


@pytest.mark.parametrize(
    ("module", "is_quick"),
    [
        ("vocabulary/test_merkle.py", True),
        ("agent/owners/test_cgroup.py", True),
        ("test_man_pages.py", False),  # imports subprocess
        ("collector/diagnosis/test_network_readings.py", False),  # by a helper, which imports one
        ("collector/ledger/test_ledger_writers.py", False),
    ],
)
def test_a_module_is_quick_unless_it_or_a_helper_uses_what_takes_time(
    module: str, *, is_quick: bool
) -> None:
    assert (TESTS / module).is_file()
    assert bool(quick_modules([TESTS / module])) is is_quick


@pytest.mark.parametrize("area", mutation.AREAS)
def test_the_modules_and_tests_of_an_area_exist(area: str) -> None:
    patterns = (*mutation.AREAS[area].modules, *mutation.AREAS[area].tests)
    assert [each for each in patterns if not any(mutation.ROOT.glob(each))] == []


def test_a_switch_has_both_forms_of_a_place(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(
        "def f(n):\n    n += 1\n    if n > 2:\n        n = 7\n    return n\n"
    )
    drawn = list(mutation.find_mutants(tmp_path, "money", "module.py"))
    code = (tmp_path / "module.py").read_bytes()
    results = set[int]()
    for mutant, edit in drawn:
        text = mutation.switched(code, edit, 5, mutant.kind).decode()
        for active in (5, -1):
            switch = type("Switch", (), {"is_on": lambda number, on=active: number == on})
            names = {"mutant_switch": switch}
            exec(compile(text, "module", "exec"), names)  # noqa: S102 - written by the product itself
            result = names["f"](2)  # type: ignore[operator]
            if active == -1:
                assert result == 7
            else:
                results.add(result)
    assert len(drawn) > 5
    assert results > {7, 3}
