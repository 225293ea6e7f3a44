"""Reasons that the kernel log states for a GPU that NVIDIA's driver does not start, with the remedy of each.

Sources: open-gpu-kernel-modules, kernel-open/nvidia/nv-pci.c, src/nvidia/arch/nvalloc/unix/src/osapi.c and osinit.c,
src/nvidia/src/kernel/gpu/gsp/kernel_gsp.c; torvalds/linux, drivers/base/firmware_loader/main.c.
"""

from __future__ import annotations

import re

_REMEDIES = {
    "not supported by open": "install the driver with its proprietary kernel modules",
    r"not supported by the .* driver release|ignoring the legacy GPU": "install a driver branch that supports the GPU",
    r"No firmware image found|/gsp_(?!log)\S+ failed with error -": (
        "install the GSP firmware of the driver's version, also in the initramfs, and load the driver again"
    ),
    "firmware image version mismatch": (
        "install driver and GSP firmware of the same version, also in the initramfs, and load the driver again"
    ),
}
START_REASON = "|".join(_REMEDIES)
"""Regular expression of all reasons."""


def find_remedy(line: str) -> str:
    """Return the remedy for the reason in a line of the kernel log; empty if the line states none."""
    return next(
        (remedy for reason, remedy in _REMEDIES.items() if re.search(reason, line, re.IGNORECASE)),
        "",
    )
