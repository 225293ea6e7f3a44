"""A copied PCI tree: links and error counters of every device of interest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.reading import Label, numbers, read_once, readings
from support.shared import unpack_capture

from railscope.reading import Absent
from railscope_agent.host.live_host import LiveHost
from railscope_agent.sources.pcie import ALL_ERRORS, PcieSource, parse_aer

DEVICES = "sys/bus/pci/devices"
WANTED = re.compile(r"0x(0300|0302|0200|0207|0108)")
LINKS = {
    "current_link_speed": "railscope_pcie_link_speed_transfers_per_second",
    "max_link_speed": "railscope_pcie_link_speed_limit_transfers_per_second",
    "current_link_width": "railscope_pcie_link_width_lanes",
    "max_link_width": "railscope_pcie_link_width_limit_lanes",
}
AER = "railscope_pcie_aer_errors_total"
ALL = "railscope_pcie_device_errors_total"
OF_NODE = "railscope_pcie_all_devices_errors_total"
GONE = "railscope_pcie_device_gone"
LIMIT, NOW, STATE = (
    f"railscope_pcie_path_{what}"
    for what in ("limit_bytes_per_second", "bandwidth_bytes_per_second", "state")
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tree with a bus link for every device: the archive has only some links."""
    directory = tmp_path_factory.mktemp("tree")
    root = unpack_capture("sysfs/procfs/tree.tar.gz", directory, "/sys/(bus/pci|devices/pci)")
    for device in sorted((root / "sys/devices").glob("pci*/**/class")):
        link = root / DEVICES / device.parent.name
        if re.fullmatch(r"[\da-f:.]+", link.name) and not link.is_symlink():
            link.symlink_to(Path("../../..") / device.parent.relative_to(root / "sys"))
    return root


def text(file: Path) -> str:
    return file.read_text().strip() if file.exists() else ""


def wanted(root: Path) -> list[Path]:
    """Endpoints of interest, and the bridges above them."""
    every = sorted((root / DEVICES).iterdir())
    ends = [device for device in every if WANTED.match(text(device / "class"))]
    above = {part for end in ends for part in end.resolve().parts}
    bridges = [d for d in every if text(d / "class").startswith("0x0604") and d.name in above]
    return ends + bridges


def errors(device: Path) -> dict[Label, float]:
    """Error counters by plain splitting."""
    found: dict[Label, float] = {}
    for severity in ("correctable", "nonfatal", "fatal"):
        for line in text(device / f"aer_dev_{severity}").splitlines():
            *fields, count = line.split()
            if fields[0].startswith("TOTAL"):
                found[ALL, (device.name, severity)] = float(count)
            else:
                found[AER, (device.name, severity, " ".join(fields))] = float(count)
    return found


def test_every_link_and_error_counter_of_the_tree(root: Path) -> None:
    expected: dict[Label, float] = {}
    for device in wanted(root):
        expected |= errors(device) | {(GONE, (device.name,)): 0.0}
        for file, metric in LINKS.items():
            if value := text(device / file):
                scale = 10**9 if "speed" in file else 1
                expected[metric, (device.name,)] = float(value.split()[0]) * scale
    # A drive of four lanes in a slot of eight; the other devices have no port above them.
    (drive,) = [device for device in wanted(root) if device.resolve().parent.name == "0000:00:02.1"]
    four_lanes = 4 * 8e9 / 8 * 128 / 130
    expected |= {(LIMIT, (drive.name,)): four_lanes, (NOW, (drive.name,)): four_lanes}
    expected[STATE, (drive.name,)] = 0
    (alone,) = [device for device in wanted(root) if device.name == "0000:a2:00.0"]
    expected[NOW, (alone.name,)] = 8 * 16e9 / 8 * 128 / 130
    assert len(wanted(root)) == 4
    assert any(expected[key] for key in expected if key[0] == AER), "some errors were counted"
    for severity in ("correctable", "nonfatal", "fatal"):
        of_devices = [expected[key] for key in expected if key[0] == ALL and key[1][1] == severity]
        expected[OF_NODE, (severity,)] = sum(of_devices)
    found = numbers(read_once(PcieSource(), LiveHost(root)).frame)
    assert found == pytest.approx(expected)
    assert (
        readings(read_once(PcieSource(), LiveHost(root)).frame)[STATE, (alone.name,)]
        is Absent.UNSUPPORTED
    )


def test_every_error_file_of_the_tree_parses(root: Path) -> None:
    files = [file for file in (root / "sys/devices").glob("pci*/**/aer_dev_*") if file.is_file()]
    assert len(files) >= 12
    for file in files:
        severity = file.name.removeprefix("aer_dev_")
        plain = {
            (more[0] if more else ALL_ERRORS): count
            for (_, (_, of, *more)), count in errors(file.parent).items()
            if of == severity
        }
        assert parse_aer(file.read_bytes()) == plain, file


def test_names_of_errors_with_spaces() -> None:
    """As kernels before 5.3 print them."""
    old = b"Receiver Error 0\nBad TLP 12\nReplay Timer Timeout 3\nTOTAL_ERR_COR 15\n"
    kinds = {"Receiver Error": 0, "Bad TLP": 12, "Replay Timer Timeout": 3}
    assert parse_aer(old) == kinds | {ALL_ERRORS: 15}


def test_an_unknown_speed_is_not_a_speed(tmp_path: Path) -> None:
    device = tmp_path / DEVICES / "0000:01:00.0"
    device.mkdir(parents=True)
    for name, content in {
        "class": "0x010802", "vendor": "0x144d", "current_link_speed": "Unknown speed",
        "max_link_speed": "16.0 GT/s PCIe", "current_link_width": "0", "max_link_width": "255",
    }.items():  # fmt: skip
        (device / name).write_text(content + "\n")
    found = readings(read_once(PcieSource(), LiveHost(tmp_path)).frame)
    by_file = {file: found[metric, ("0000:01:00.0",)] for file, metric in LINKS.items()}
    assert by_file == {
        "current_link_speed": Absent.UNSUPPORTED, "max_link_speed": 16_000,
        "current_link_width": Absent.UNSUPPORTED, "max_link_width": Absent.UNSUPPORTED,
    }  # fmt: skip
