"""Memory of MIG instances by the names of their profiles.

Source: NVIDIA Multi-Instance GPU User Guide, "Supported MIG Profiles".
"""

from __future__ import annotations

_EIGHT = 8
_USUAL_MEMORY_SLICES = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}
"""Memory slices by compute slices, on a GPU with eight: the minimum of an instance."""


def count_memory_slices(
    compute_slices: int, gigabytes: int, gpu_gigabytes: float, whole: int = _EIGHT
) -> int:
    """Return the memory slices of an instance, of the `whole` that its GPU has.

    Some profiles, such as 1g.20gb of a GPU with 80 GB, have more memory than others with as many compute
    slices. `gpu_gigabytes` is 0 if the memory of the GPU is unknown: then the usual number is assumed.
    """
    usual = max(1, compute_slices)
    if whole == _EIGHT:
        usual = _USUAL_MEMORY_SLICES.get(compute_slices, usual)
    if not gpu_gigabytes:
        return usual
    return min(whole, max(usual, round(gigabytes * whole / gpu_gigabytes)))
