"""A capture as a tree reads as the capture does, through the agent's own reader and psutil."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.capture_tree import write_tree

from railscope.capture import Capture, CaptureError, CaptureMoment, CaptureTimeline, Json
from railscope_agent.host.files import RootedFiles
from railscope_simulator import NodeSpec, simulate

END_NS = 6 * 10**9
FUNCTIONS = (
    "cpu_times", "cpu_count", "boot_time", "virtual_memory", "swap_memory", "disk_io_counters",
    "net_io_counters",
)  # fmt: skip
ASK = """
import json, sys
from railscope_agent.host.live_host import PsutilCalls
machine = PsutilCalls(sys.argv[1])
print(json.dumps({function: machine.call(function) for function in sys.argv[2:]}))
"""


@pytest.fixture(scope="module")
def capture() -> Capture:
    return simulate(NodeSpec("gpu-001", scenario="link_flap"), 6)


@pytest.fixture(scope="module")
def tree(capture: Capture, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tree")
    write_tree(capture, directory)
    return directory


@pytest.fixture(scope="module")
def answers(tree: Path) -> dict[str, Json]:
    """Readings of psutil from the tree, in a process of its own: psutil's /proc applies to the process."""
    asked = subprocess.run(
        [sys.executable, "-c", ASK, str(tree / "proc"), *FUNCTIONS],
        check=True,
        stdout=subprocess.PIPE,
    )
    found: dict[str, Json] = json.loads(asked.stdout)
    return found


def state(capture: Capture, section: str, offset_ns: int) -> dict[str, Json]:
    timeline = CaptureTimeline(capture.moments)
    found = {
        key: timeline.result_at(section, key, offset_ns)
        for key in getattr(capture.moments[0], section)
    }
    return {key: value for key, value in found.items() if not isinstance(value, dict)}


def test_files_directories_and_links_read_as_in_the_capture(capture: Capture, tree: Path) -> None:
    files = RootedFiles(tree)
    for path, text in state(capture, "files", END_NS).items():
        assert files.read(path).decode(errors="surrogateescape") == text
    for path, target in state(capture, "links", END_NS).items():
        assert files.resolve(path) == target
    for path, entries in state(capture, "names", END_NS).items():
        assert set(entries) <= set(files.names(path))
    for directory in ("class/net", "class/infiniband", "bus/pci/devices"):
        assert files.names(f"/sys/{directory}") == capture.moments[0].names[f"/sys/{directory}"]


def test_what_failed_is_not_there(tree: Path) -> None:
    assert not (tree / "sys/class/infiniband/mlx5_0/hw_counters").exists()
    assert not (tree / "sys/class/net/lo/speed").exists()
    assert not (tree / "sys/class/net/lo/device").exists()


def test_devices_are_links_and_no_link_leads_out(tree: Path) -> None:
    device = tree / "sys/bus/pci/devices/0000:1b:00.0"
    assert device.is_symlink()
    assert (device / "vendor").read_text() == "0x10de\n"
    assert (device / "driver").resolve().name == "nvidia"
    links = [path for path in (tree / "sys").rglob("*") if path.is_symlink()]
    assert len(links) > 50
    for link in links:
        assert not link.readlink().is_absolute()
        assert link.resolve(strict=True).is_relative_to(tree.resolve())


def test_a_tree_can_be_brought_to_another_offset(capture: Capture, tmp_path: Path) -> None:
    carrier = tmp_path / "sys/class/net/ens4f0np0/carrier"
    for offset_ns, expected in ((0, "1\n"), (END_NS // 2, "0\n"), (END_NS, "1\n")):
        write_tree(capture, tmp_path, offset_ns)
        assert carrier.read_text() == expected
        log = (tmp_path / "dev/kmsg").read_text()
        assert ("Link down" in log) == (offset_ns > 0)


def test_a_nic_that_was_removed_leaves_the_tree(tmp_path: Path) -> None:
    lost = simulate(NodeSpec("gpu-001", gpus=4, scenario="nic_lost"), 6)
    files = RootedFiles(tmp_path)
    for offset_ns, there in ((0, True), (END_NS, False)):
        write_tree(lost, tmp_path, offset_ns)
        assert ("ens4f0np0" in files.names("/sys/class/net")) == there
        assert ("mlx5_5" in files.names("/sys/class/infiniband")) == there
        assert ("0000:5e:00.0" in files.names("/sys/bus/pci/devices")) == there
    assert files.read("/sys/class/net/ens3f0np0/carrier") == b"1\n"
    with pytest.raises(FileNotFoundError):
        files.read("/sys/class/net/ens4f0np0/carrier")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_psutil_answers_from_the_tree_as_in_the_capture(
    function: str, capture: Capture, answers: dict[str, Json]
) -> None:
    answer = answers[function]
    expected = CaptureTimeline(capture.moments).result_at("calls", f"psutil.{function}()", END_NS)
    if function == "virtual_memory":
        answer, expected = ({**reply, "used": 0, "percent": 0} for reply in (answer, expected))
    assert answer == expected


@pytest.mark.parametrize("path", ["/sys/../../outside", "sys/relative"])
def test_a_path_out_of_the_tree_is_rejected(path: str, capture: Capture, tmp_path: Path) -> None:
    moment = CaptureMoment(0, files={path: "1\n"})
    with pytest.raises(CaptureError, match=r"invalid path .*: expected one inside the tree"):
        write_tree(Capture(capture.about, (moment,)), tmp_path / "tree")
