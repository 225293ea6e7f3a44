"""MIG instances have the slots that the agent of their node reports."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, strategies as st

from railscope.shapes import split
from railscope.wire import WireEntity, WireSchema
from railscope_collector.fleet.shape_columns import ReportedMigInstance, mig_layouts

WHOLE = (0, 840)


def layout(*devices: dict[str, str]) -> tuple[ReportedMigInstance, ...]:
    """The layout of one GPU with MIG devices that have these facts."""
    mig = [
        WireEntity(kind="mig", key=("GPU-0", f"MIG-{place}"), facts={"profile": "3g.40gb", **facts})
        for place, facts in enumerate(devices)
    ]
    entities = (WireEntity(kind="gpu", key=("GPU-0",), facts={}), *mig)
    shape, names, _ = split(WireSchema("mig", (), entities), reserve=False)
    ((_, parts),) = mig_layouts(shape, names)
    return parts


def device(instance: int, compute: str, memory: str) -> dict[str, str]:
    return {"gpu_instance": str(instance), "compute_slots": compute, "memory_slots": memory}


def test_an_instance_without_slots_is_omitted():
    parts = layout(device(1, "0-360", "0-420"), {"gpu_instance": "2"})
    assert parts == (ReportedMigInstance((0, 360), (0, 420)),)


@given(st.lists(st.tuples(st.integers(0, 3), st.text("0123456789-", max_size=8)), max_size=4))
def test_no_two_instances_overlap_whatever_is_reported(reported):
    parts = layout(*(device(instance, text, text) for instance, text in reported))
    for tiling in ("compute", "memory"):
        slots = sorted(getattr(part, tiling) for part in parts)
        assert all(one[1] <= other[0] for one, other in pairwise(slots))
        assert all(0 <= low < high <= WHOLE[1] for low, high in slots)
