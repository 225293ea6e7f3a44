"""MIG devices and shares as slots of a GPU."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from railscope.claim_terms import GPU_CAPACITY
from railscope_agent.gpus.mig_slots import (
    WHOLE_GPU,
    GpuSlotRange,
    ReportedMigDevice,
    count_covered_slots,
    find_mig_slots,
)


def instance(
    place: int, profile: str, start: int | None = None, size: int | None = None, **more: int
) -> ReportedMigDevice:
    more = {"gpu_instance": place, "compute_instance": 0, **more}
    return ReportedMigDevice(
        f"MIG-{place}-{more['compute_instance']}", profile, start=start, size=size, **more
    )


def slots(found):
    return {uuid: (str(place.compute), str(place.memory)) for uuid, place in found.items()}


def test_placements_as_the_driver_reports_them():
    """The layout that NVIDIA's guide shows: 3g at 4, 2g at 0, 1g at 2 and 3."""
    found = find_mig_slots(
        [
            instance(2, "3g.20gb", 4, 4),
            instance(3, "2g.10gb", 0, 2),
            instance(9, "1g.5gb", 2, 1),
            instance(10, "1g.5gb+me", 3, 1),
        ]
    )
    assert slots(found) == {
        "MIG-2-0": ("480-840", "420-840"), "MIG-3-0": ("0-240", "0-210"),
        "MIG-9-0": ("240-360", "210-315"), "MIG-10-0": ("360-480", "315-420"),
    }  # fmt: skip


def test_a_gpu_with_four_slices():
    found = find_mig_slots(
        [instance(1, "2g.12gb", 0, 2, max_devices=4), instance(5, "1g.6gb", 3, 1, max_devices=4)]
    )
    assert slots(found) == {"MIG-1-0": ("0-420", "0-420"), "MIG-5-0": ("630-840", "630-840")}
    assert slots(find_mig_slots([instance(0, "4g.24gb", 0, 4, max_devices=4)])) == {
        "MIG-0-0": ("0-840", "0-840")
    }


def test_all_of_a_gpu():
    assert slots(find_mig_slots([instance(0, "7g.80gb", 0, 8)])) == {"MIG-0-0": ("0-840", "0-840")}


def test_compute_instances_share_the_memory_of_theirs():
    found = find_mig_slots(
        [
            instance(1, "1c.3g.40gb", 0, 4, compute_instance=1),
            instance(1, "2c.3g.40gb", 0, 4, compute_instance=2),
        ]
    )
    assert slots(found) == {"MIG-1-1": ("0-120", "0-140"), "MIG-1-2": ("120-360", "140-420")}


def test_a_profile_that_is_not_understood_has_no_place():
    assert find_mig_slots([instance(1, "", 0, 4), instance(2, "half")]) == {}


GIBIBYTES = {
    "A100 40GB": 40.0, "A100 80GB": 80.0, "H100 80GB": 79.6, "H100 NVL": 93.6, "GH200": 95.6, "H200": 140.4,
    "B200": 179.1, "GB200": 185.0, "A30": 24.0, "RTX PRO 6000": 95.6,
}  # fmt: skip
"""Memory that the driver reports."""


@pytest.mark.parametrize(
    ("model", "profiles"),
    [
        ("A100 40GB", {"1g.5gb": 1, "1g.5gb+me": 1, "1g.10gb": 2, "2g.10gb": 2, "3g.20gb": 4, "4g.20gb": 4, "7g.40gb": 8}),
        ("A100 80GB", {"1g.10gb": 1, "1g.20gb": 2, "2g.20gb": 2, "3g.40gb": 4, "4g.40gb": 4, "7g.80gb": 8}),
        ("H100 80GB", {"1g.10gb": 1, "1c.3g.40gb": 4, "1g.20gb": 2, "2g.20gb": 2, "3g.40gb": 4, "7g.80gb": 8}),
        ("H100 NVL", {"1g.12gb": 1, "1g.24gb": 2, "2g.24gb": 2, "3g.47gb": 4, "4g.47gb": 4, "7g.94gb": 8}),
        ("GH200", {"1g.12gb": 1, "1g.24gb": 2, "2g.24gb": 2, "3g.48gb": 4, "4g.48gb": 4, "7g.96gb": 8}),
        ("H200", {"1g.18gb": 1, "1g.35gb": 2, "2g.35gb": 2, "3g.71gb": 4, "4g.71gb": 4, "7g.141gb": 8}),
        ("B200", {"1g.23gb": 1, "1g.45gb": 2, "2g.45gb": 2, "3g.90gb": 4, "4g.90gb": 4, "7g.180gb": 8}),
        ("GB200", {"1g.23gb": 1, "1g.47gb": 2, "2g.47gb": 2, "3g.93gb": 4, "4g.93gb": 4, "7g.186gb": 8}),
        ("A30", {"1g.6gb": 1, "2g.12gb": 2, "4g.24gb": 4}),
        ("RTX PRO 6000", {"1g.24gb": 1, "1g.24gb+gfx": 1, "2g.48gb": 2, "4g.96gb": 4}),
    ],
)  # fmt: skip
def test_the_memory_of_an_instance_by_its_profile(model: str, profiles: dict[str, int]) -> None:
    devices = 4 if model in {"A30", "RTX PRO 6000"} else 7
    more = {"max_devices": devices, "gpu_memory_bytes": round(GIBIBYTES[model] * 2**30)}
    found = {name: instance(1, name, **more).memory_slices for name in profiles}
    assert found == profiles
    assert instance(1, "1g.99gb", max_devices=devices).memory_slices == 1


def test_instances_with_twice_the_memory_have_places_of_two_slices():
    found = find_mig_slots(
        [instance(place, "1g.20gb", gpu_memory_bytes=80 << 30) for place in (1, 2, 3, 4, 5)]
    )
    assert slots(found) == {
        "MIG-1-0": ("0-120", "0-210"), "MIG-2-0": ("240-360", "210-420"),
        "MIG-3-0": ("480-600", "420-630"), "MIG-4-0": ("720-840", "630-840"),
    }  # fmt: skip


@given(st.permutations(["1g.10gb"] * 3 + ["2g.20gb", "3g.40gb"]), st.data())
def test_without_placements_no_two_overlap(profiles, data):
    count = data.draw(st.integers(1, 4))
    found = find_mig_slots(
        [instance(place, profile) for place, profile in enumerate(profiles[:count])]
    )
    for which in ("compute", "memory"):
        given_ = [getattr(place, which) for place in found.values()]
        assert count_covered_slots(given_) == sum(each.high - each.low for each in given_)


@pytest.mark.parametrize("wrong", [(-1, 840), (0, 841), (5, 5), (9, 3)])
def test_invalid_slot_ranges(wrong):
    with pytest.raises(ValueError, match="invalid slot range"):
        GpuSlotRange(*wrong)


def test_slots_covered_twice_count_once():
    assert count_covered_slots([WHOLE_GPU, GpuSlotRange(0, 10)]) == GPU_CAPACITY
