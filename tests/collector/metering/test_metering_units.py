import pytest

from railscope.claim_terms import GPU_CAPACITY
from railscope_collector.metering.units import (
    COMPUTE_SLICE,
    GPU_HOUR,
    MEMORY_SLICE,
    compute_slices,
    memory_slices,
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
