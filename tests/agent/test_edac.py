"""Memory errors by controller and module."""

from __future__ import annotations

from support.machine import FakeHost
from support.reading import ORIGIN, numbers, read_once, readings

from railscope.reading import Absent
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.edac import EDAC_ROOT, EdacSource

CONTROLLER = {"ce_count": 7, "ue_count": 1, "ce_noinfo_count": 2, "ue_noinfo_count": 0}


def server() -> FakeHost:
    host = FakeHost()
    for name, count in CONTROLLER.items():
        host.files[f"{EDAC_ROOT}/mc/mc0/{name}"] = f"{count}\n"
    host.files[f"{EDAC_ROOT}/mc/mc0/mc_name"] = "Skylake Socket#0 IMC#0\n"
    host.files[f"{EDAC_ROOT}/mc/mc0/seconds_since_reset"] = "4711\n"
    add_module(host, "mc0/dimm0", 5, 1, "CPU0_DIMM_A1")
    add_module(host, "mc0/dimm1", 0, 0, "CPU0_DIMM_B1")
    host.files[f"{EDAC_ROOT}/mc/mc1/ce_count"] = "0\n"
    add_module(host, "mc1/rank3", 3, 0, "mc#1csrow#1channel#1")
    host.files[f"{EDAC_ROOT}/pci/pci_parity_count"] = "4\n"
    host.files[f"{EDAC_ROOT}/pci/pci_nonparity_count"] = "0\n"
    return host


def add_module(host: FakeHost, place: str, corrected: int, uncorrected: int, slot: str) -> None:
    directory = f"{EDAC_ROOT}/mc/{place}"
    host.files |= {
        f"{directory}/dimm_ce_count": f"{corrected}\n",
        f"{directory}/dimm_ue_count": f"{uncorrected}\n",
        f"{directory}/dimm_label": f"{slot}\n",
        f"{directory}/dimm_location": "channel 0 slot 0 \n",
        f"{directory}/dimm_mem_type": "Registered-DDR5\n",
        f"{directory}/size": "65536\n",
    }


def test_every_count_of_controllers_modules_and_buses() -> None:
    outcome = read_once(EdacSource(), server())
    assert numbers(outcome.frame) == {
        ("railscope_memory_corrected_errors_total", ("mc0",)): 7,
        ("railscope_memory_uncorrected_errors_total", ("mc0",)): 1,
        ("railscope_memory_unplaced_corrected_errors_total", ("mc0",)): 2,
        ("railscope_memory_unplaced_uncorrected_errors_total", ("mc0",)): 0,
        ("railscope_memory_corrected_errors_total", ("mc1",)): 0,
        ("railscope_dimm_corrected_errors_total", ("mc0", "dimm0")): 5,
        ("railscope_dimm_uncorrected_errors_total", ("mc0", "dimm0")): 1,
        ("railscope_dimm_corrected_errors_total", ("mc0", "dimm1")): 0,
        ("railscope_dimm_uncorrected_errors_total", ("mc0", "dimm1")): 0,
        ("railscope_dimm_corrected_errors_total", ("mc1", "rank3")): 3,
        ("railscope_dimm_uncorrected_errors_total", ("mc1", "rank3")): 0,
        ("railscope_pci_parity_errors_total", ()): 4,
        ("railscope_pci_nonparity_errors_total", ()): 0,
    }
    assert "2 memory controllers, 3 modules" in outcome.findings[0].detail


def test_a_memory_module_is_identified() -> None:
    frame = read_once(EdacSource(), server()).frame
    assert frame is not None
    facts = {entity.key: entity.facts for _, entity, _ in frame.readings()}
    assert facts["mc0", "dimm0"] == {
        "slot": "CPU0_DIMM_A1",
        "location": "channel 0 slot 0",
        "memory_type": "Registered-DDR5",
    }
    assert facts["mc0",] == {"model": "Skylake Socket#0 IMC#0"}


def test_a_driver_that_is_unloaded_takes_its_counts_along() -> None:
    host = server()
    reader = SourceReader(EdacSource(), host, ORIGIN)
    reader.run()
    host.files = {path: text for path, text in host.files.items() if "/mc1/" not in path}
    found = readings(reader.run().frame)
    assert found["railscope_memory_corrected_errors_total", ("mc1",)] is Absent.GONE
    assert found["railscope_memory_corrected_errors_total", ("mc0",)] == 7


def test_a_server_without_ecc_has_none() -> None:
    outcome = read_once(EdacSource(), FakeHost())
    assert outcome.frame is None
    assert outcome.findings[0].verdict is ProbeVerdict.ABSENT
