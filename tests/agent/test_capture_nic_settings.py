"""A copied /sys of a NIC with the vendor's congestion control: every value is read."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from support.nics import facts
from support.reading import Label, read_once, readings
from support.shared import unpack_capture

from railscope.reading import Reading
from railscope_agent.host import Json
from railscope_agent.host.live_host import LiveHost
from railscope_agent.sampling.source_reader import ReadOutcome
from railscope_agent.sources.nic_settings import NicSettingsSource

SIDES = {"np": "notification", "rp": "reaction"}
ECN_ENABLED = "railscope_nic_setting_ecn_enabled"
PARAMETER = "railscope_nic_setting_dcqcn_parameter"


class CopiedTree(LiveHost):
    """A tree of files without devices to query."""

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        raise OSError(errno.ENODEV, f"No such device to ask {host_interface}.{function}{arguments}")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("procfs")
    return unpack_capture(
        "sysfs/procfs/tree.tar.gz", directory, r"^fixtures/sys/(class/net|devices/pci)"
    )


@pytest.fixture(scope="module")
def outcome(root: Path) -> ReadOutcome:
    return read_once(NicSettingsSource(), CopiedTree(root))


@pytest.fixture(scope="module")
def ecn(root: Path) -> Path:
    return root / "sys/class/net/eth0/ecn"


def number(file: Path) -> int:
    return int(file.read_text())


def found(outcome: ReadOutcome, name: str) -> dict[Label, Reading]:
    return {label: value for label, value in readings(outcome.frame).items() if label[0] == name}


def test_the_capture_contains_the_tested_files(ecn: Path) -> None:
    assert len([file for file in ecn.rglob("*") if file.is_file()]) == 35


def test_every_priority_of_both_sides_comes_out(outcome: ReadOutcome, ecn: Path) -> None:
    assert found(outcome, ECN_ENABLED) == {
        (ECN_ENABLED, ("eth0", label, file.name)): number(file)
        for side, label in SIDES.items()
        for file in (ecn / f"roce_{side}/enable").iterdir()
    }


def test_every_parameter_comes_out_once(outcome: ReadOutcome, ecn: Path) -> None:
    """As many parameters as files, with the values of the files, independent of their names."""
    files = [f for side in SIDES for f in (ecn / f"roce_{side}").iterdir() if f.is_file()]
    parameters = found(outcome, PARAMETER)
    assert len(files) == len(parameters) == 19
    assert sorted(map(number, files)) == sorted(
        v for v in parameters.values() if isinstance(v, int)
    )
    names = {"rp_ai_rate": "roce_rp/rpg_ai_rate", "np_cnp_prio": "roce_np/cnp_802p_prio",
             "rp_dce_tcp_g": "roce_rp/dce_tcp_g", "np_cnp_dscp": "roce_np/cnp_dscp"}  # fmt: skip
    for name, path in names.items():
        assert parameters[PARAMETER, ("eth0", name)] == number(ecn / path)


def test_the_facts_match(outcome: ReadOutcome) -> None:
    assert facts(outcome)["eth0"] == {
        "mtu": "1500", "ecn_notification": "0,1,3,4,6,7", "ecn_reaction": "0,1,3,4,6",
        "np_cnp_dscp": "48", "np_cnp_prio": "6",
    }  # fmt: skip
