from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from collector.metering.units import (
    COMPUTE_SLICE,
    GPU_HOUR,
    MEMORY_SLICE,
    compute_slices,
    memory_slices,
    replica,
)
from railscope.claim_terms import GPU_CAPACITY


@given(st.integers(1, 100))
def test_replicas_of_a_gpu_have_all_of_it_and_nothing_twice(of):
    edges = [replica(index, of) for index in range(of)]
    assert (edges[0].low, edges[-1].high) == (0, GPU_CAPACITY)
    assert all(before.high == after.low for before, after in pairwise(edges))


def test_every_mig_slice_and_share_up_to_eight_comes_out_whole():
    assert 7 * COMPUTE_SLICE == 8 * MEMORY_SLICE == GPU_CAPACITY
    assert all(GPU_CAPACITY % of == 0 for of in range(1, 9))
    assert compute_slices(4, 3) == (480, 840)
    assert memory_slices(4, 4) == (420, 840)
    assert GPU_HOUR == 3_024_000_000_000_000


def test_there_is_no_more_than_a_gpu():
    for beyond in (
        lambda: replica(2, 2),
        lambda: replica(-1, 2),
        lambda: compute_slices(5, 3),
        lambda: memory_slices(-1, 1),
    ):
        with pytest.raises(ValueError, match=r"replica|a range within"):
            beyond()
