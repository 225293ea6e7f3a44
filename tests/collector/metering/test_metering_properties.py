import claim_properties
import properties
import pytest
from histories import metering_cases
from hypothesis import HealthCheck, Phase, given, seed, settings
from mutants import MUTANTS
from properties import MeteringImplementation

SEARCHES = 300
"""Three find every defect."""
PROPERTIES = [*properties.PROPERTIES, *claim_properties.PROPERTIES]


@pytest.mark.parametrize("has_property", PROPERTIES, ids=lambda has_property: has_property.__name__)
@given(case=metering_cases())
def test_metering(has_property, case):
    has_property(MeteringImplementation(), case)


def refuted(has_property, metering):
    """True if a property finds a defect; the first such case is enough.

    Short searches with different seeds: the first tenth of the cases of a search is small, and in a long
    search that is all of the first fifty.
    """
    return any(is_found(has_property, metering, number) for number in range(SEARCHES))


def is_found(has_property, metering, number):
    @seed(number)
    @settings(
        max_examples=10,
        database=None,
        derandomize=False,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(metering_cases())
    def attempt(case) -> None:
        has_property(metering, case)

    try:
        attempt()
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("bug", MUTANTS)
def test_properties_find(bug):
    metering, has_property = MUTANTS[bug]
    assert refuted(has_property, metering)
