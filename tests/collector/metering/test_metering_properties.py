import claim_properties
import properties
import pytest
from histories import metering_cases
from hypothesis import HealthCheck, Phase, given, seed, settings
from mutants import MUTANTS
from properties import MeteringImplementation

SEED = 2
"""One with which every defect is found soon; others find them as well, after more cases."""
PROPERTIES = [*properties.PROPERTIES, *claim_properties.PROPERTIES]


@pytest.mark.parametrize("holds", PROPERTIES, ids=lambda holds: holds.__name__)
@given(case=metering_cases())
def test_metering(holds, case):
    holds(MeteringImplementation(), case)


def refuted(holds, metering):
    """True if a property finds a defect; the first such case is enough."""

    @seed(SEED)
    @settings(
        max_examples=3000,
        database=None,
        derandomize=False,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(metering_cases())
    def attempt(case) -> None:
        holds(metering, case)

    try:
        attempt()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("bug", MUTANTS)
def test_properties_find(bug):
    metering, holds = MUTANTS[bug]
    assert refuted(holds, metering)
