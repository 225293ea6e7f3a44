"""MIG instances have the slots that the agent of their node reports."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from railscope.shapes import split
from railscope.wire import WireEntity, WireSchema
from railscope_collector.fleet.shape_columns import (
    ReportedMigInstance,
    find_metered_columns,
    name_metered_columns,
)

WHOLE = (0, 840)


def layout(*devices: dict[str, str], model: str = "") -> tuple[ReportedMigInstance, ...]:
    """The layout of one GPU with MIG devices that have these facts."""
    mig = [
        WireEntity(kind="mig", key=("GPU-0", f"MIG-{place}"), facts={"profile": "3g.40gb", **facts})
        for place, facts in enumerate(devices)
    ]
    entities = (WireEntity(kind="gpu", key=("GPU-0",), facts={"model": model}), *mig)
    shape, names, _ = split(WireSchema("mig", (), entities), reserve=False)
    metered = find_metered_columns(shape)
    ((_, parts),) = name_metered_columns(metered, shape, names).layouts
    return parts


def device(instance: int, compute: str, memory: str) -> dict[str, str]:
    return {"gpu_instance": str(instance), "compute_slots": compute, "memory_slots": memory}


@pytest.mark.parametrize(
    ("model", "profile", "eighths"),
    [
        ("NVIDIA GH200 480GB", "3g.48gb", 4),
        ("NVIDIA GH200 480GB", "7g.96gb", 8),
        ("NVIDIA GH200 480GB", "1g.24gb", 2),
        ("NVIDIA GH200 144G HBM3e", "1g.18gb", 1),
        ("NVIDIA H200", "1g.35gb", 2),
        ("NVIDIA H200", "1g.18gb", 1),
        ("NVIDIA H100 80GB HBM3", "1g.20gb", 2),
        ("NVIDIA H100 80GB HBM3", "2g.20gb", 2),
        ("NVIDIA A100-SXM4-40GB", "1g.10gb", 2),
        ("NVIDIA H999 9999GB", "3g.40gb", 4),
        ("NVIDIA H999", "1g.999gb", 1),
    ],
)
def test_the_memory_of_an_instance_by_profile_and_model(
    model: str, profile: str, eighths: int
) -> None:
    (part,) = layout({"gpu_instance": "1", "profile": profile}, model=model)
    assert part.memory == (0, eighths * 105)


@given(st.lists(st.tuples(st.integers(0, 3), st.text("0123456789-", max_size=8)), max_size=4))
def test_no_two_instances_overlap_whatever_is_reported(reported):
    parts = layout(*(device(instance, text, text) for instance, text in reported))
    for tiling in ("compute", "memory"):
        slots = sorted(getattr(part, tiling) for part in parts)
        assert all(one[1] <= other[0] for one, other in pairwise(slots))
        assert all(0 <= low < high <= WHOLE[1] for low, high in slots)
