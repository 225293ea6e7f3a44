"""Areas and switches of the mutation test."""

from __future__ import annotations

import mutation
import pytest


@pytest.mark.parametrize("area", mutation.AREAS)
def test_the_modules_and_tests_of_an_area_exist(area: str) -> None:
    patterns = (*mutation.AREAS[area].modules, *mutation.AREAS[area].tests)
    assert [each for each in patterns if not any(mutation.ROOT.glob(each))] == []
