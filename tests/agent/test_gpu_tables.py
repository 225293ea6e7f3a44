"""Every number of nvidia-smi comes out as the metric of that number, and as no other."""

from __future__ import annotations

import fnmatch

import pytest
from support.gpu_readings import read_gpus
from support.machine import FakeHost
from support.nvidia_smi import machine
from support.row_pairs import PAIRS, agrees

from railscope.catalog import METRICS

GPU = "GPU-0"


LIMITS = {name: METRICS[f"railscope_gpu_{metric}"].valid for name, (metric, _) in PAIRS.items()}
FLAGS = [name for name, limits in LIMITS.items() if limits == (0, 1) and name != "mig.mode.current"]
"""Flags and ratios. A GPU in MIG mode is read in another way."""


def distinct_row() -> dict[str, str]:
    """Return a row of nvidia-smi whose numbers are all different, as far as their limits permit."""
    row = {
        name: str(min(place, (LIMITS[name] or (0, place))[1]))
        for place, name in enumerate(PAIRS, 10)
    }
    row |= {name: str(number) for number, name in enumerate(fnmatch.filter(PAIRS, "pcie.*gen*"), 1)}
    row |= {
        "pstate": "5",
        "fabric.state": "Completed",
        "mig.mode.current": "Disabled",
        "uuid": GPU,
        "name": "H100",
    }
    row["memory.total"] = "99"  # more than is used
    row |= {"pci.bus_id": "00000000:19:00.0", "driver_version": "590.48.01"}
    return row


@pytest.mark.parametrize("flag", ["", *FLAGS])
def test_no_number_comes_out_as_another(flag: str) -> None:
    """Real GPUs report many equal zeros: here every number is different, and one flag at a time is set."""
    host = FakeHost()
    row = distinct_row()
    if flag:
        row |= dict.fromkeys(FLAGS, "0") | {flag: "1"}
    host.calls |= machine([row])
    reported = read_gpus(host)
    for name, (metric, part) in PAIRS.items():
        ours = reported.number(f"gpu_{metric}", GPU, *part)
        assert agrees(ours, name, row[name]), f"{name}: {ours} of {row[name]}"
