"""Areas and switches of the mutation test."""

from __future__ import annotations

from pathlib import Path

import mutation
import pytest


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
