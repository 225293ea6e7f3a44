import pytest

from railscope.claim_terms import GPU_CAPACITY
from railscope_collector.metering.units import (
    COMPUTE_SLICE,
    GPU_HOUR,
    MEMORY_SLICE,
    PeriodError,
    compute_slices,
    memory_slices,
    parse_period,
)


def test_every_mig_slice_and_share_up_to_eight_comes_out_whole():
    assert 7 * COMPUTE_SLICE == 8 * MEMORY_SLICE == GPU_CAPACITY
    assert all(GPU_CAPACITY % of == 0 for of in range(1, 9))
    assert compute_slices(4, 3) == (480, 840)
    assert memory_slices(4, 4) == (420, 840)
    assert GPU_HOUR == 3_024_000_000_000_000


def test_there_is_no_more_than_a_gpu():
    for beyond in (
        lambda: compute_slices(5, 3),
        lambda: memory_slices(-1, 1),
    ):
        with pytest.raises(ValueError, match="a range within"):
            beyond()


@pytest.mark.parametrize(
    "text", ["1969-12", "2262-04", "9000-01", "0001-01", "2026-01-01..9999-12-30"]
)
def test_a_period_is_in_the_range_of_timestamps(text: str):
    with pytest.raises(PeriodError, match="from 1970 to 2262"):
        parse_period(text)
