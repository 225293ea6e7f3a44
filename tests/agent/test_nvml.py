"""The NVML seam through the real nvidia-ml-py: a library that is missing, and a stand-in for it."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.host import NvmlError
from agent.host.real import RealHost

STANDIN = Path(__file__).parent / "nvml_standin"
LIBRARY = "libnvidia-ml.so.1"
ROOT = Path(__file__).parents[2]


def test_a_machine_without_the_driver() -> None:
    try:
        ctypes.CDLL(LIBRARY)
    except OSError:
        with pytest.raises(NvmlError) as raised:
            RealHost().call("nvml", "nvmlDeviceGetCount")
        assert raised.value.code == 12
    else:
        pytest.skip("this machine has the NVIDIA driver")


def test_a_copied_tree_has_no_gpus_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(NvmlError, match="copied tree") as raised:
        RealHost(tmp_path).call("nvml", "nvmlDeviceGetCount")
    assert raised.value.code == 12


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the agent makes of two GPUs that the stand-in plays."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler: install the Debian package gcc")
    library = tmp_path_factory.mktemp("nvml") / LIBRARY
    flags = ["-shared", "-fPIC", "-Wall", "-Werror", f"-Wl,-soname,{LIBRARY}"]
    source = str(STANDIN / "standin.c")
    subprocess.run([compiler, *flags, "-o", str(library), source], check=True)
    outcome = subprocess.run(
        [sys.executable, str(STANDIN / "ask.py"), str(library)],
        capture_output=True, text=True, check=False, cwd=ROOT, env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr
    answers: dict[str, Any] = json.loads(outcome.stdout)
    return answers


def of_gpu(read: dict[str, Any], index: int) -> dict[str, Any]:
    """The readings of one GPU, by metric and part, without the prefix."""
    return {
        name.removeprefix("railscope_gpu_").replace(f" GPU-{index}", ""): reading
        for name, reading in read.items()
        if f" GPU-{index}" in name
    }


def test_numbers_come_through_ctypes_as_they_are(said: dict[str, Any]) -> None:
    found = of_gpu(said["healthy"], 1)
    assert found["power_watts"] == 631_950
    assert found["energy_joules_total"] == 1 << 60
    assert [found[f"memory_{name}_bytes"] for name in ("size", "used", "free", "reserved")] == [
        100, 30, 69, 1,
    ]  # fmt: skip
    assert [found[f"clock_hertz {name}"] for name in ("graphics", "sm", "memory", "video")] == [
        1000, 1001, 1002, 1003,
    ]  # fmt: skip
    assert (found["temperature_celsius"], found["memory_temperature_celsius"]) == (59, 54)
    assert (found["utilization_ratio"], found["memory_activity_ratio"]) == (37, 11)


def test_the_older_function_is_asked_where_the_newer_is_missing(said: dict[str, Any]) -> None:
    found = of_gpu(said["healthy"], 0)
    active = [name for name, r in found.items() if name.startswith("throttle_active") and r == 1]
    assert active == ["throttle_active software_power_cap"]


def test_structures_and_fields_become_plain_answers(said: dict[str, Any]) -> None:
    assert said["pci"]["busId"] == "00000000:01:00.0"
    assert said["fields"] == [[0, 54], [0, 74_000_000_000], [3, 75_000_000_000]]
    found = of_gpu(said["healthy"], 0)
    assert found["throttle_seconds_total thermal"] == "unsupported"
    assert found["throttle_seconds_total hardware_power_brake"] == 271_000_000_000


def test_failures_keep_their_code(said: dict[str, Any]) -> None:
    assert said["no such function"] == {"code": 13}
    assert said["no such symbol"] == {"code": 13}
    assert said["no such gpu"] == {"code": 2}


def test_handles_are_asked_for_once(said: dict[str, Any]) -> None:
    assert said["handles of a second read"] == 0


def test_a_lost_gpu_comes_back_with_a_new_handle(said: dict[str, Any]) -> None:
    assert set(of_gpu(said["lost"], 1).values()) == {"gone"}
    assert of_gpu(said["lost"], 0) == of_gpu(said["healthy"], 0)
    assert said["found"] == said["healthy"]


def test_a_driver_that_was_reloaded_is_started_again(said: dict[str, Any]) -> None:
    assert set(of_gpu(said["unloaded"], 0).values()) == {"gone"}
    assert said["still unloaded"].get("problem") or "gone" in said["still unloaded"].values()
    assert said["started again"]
    assert said["loaded"] == said["healthy"]
