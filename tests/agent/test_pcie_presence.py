"""Devices that leave the PCI bus stay known: a series that ends gives no reason."""

from __future__ import annotations

from hypothesis import given, strategies as st
from support.clock import ManualClock
from support.machine import DENIED, FakeHost
from support.pci_bus import DEVICES, NVME, add_device, add_gpu, add_nic, remove_device, set_link
from support.reading import ORIGIN, readings

from railscope.catalog.entities import PCIE
from railscope.frame import Entity, Event, Frame, NodeTimestamp
from railscope.reading import Absent
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.pci_presence import MAX_DEVICES, PciPresence
from railscope_agent.sources.pcie import PcieSource

GONE = "railscope_pcie_device_gone"
NIC_PATH = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0"
NIC, DOWN = "0000:18:00.0", "0000:17:00.0"


class PcieNodeRun:
    """A host with a NIC, a GPU and a drive, read repeatedly."""

    def __init__(self) -> None:
        self.host = FakeHost(ManualClock())
        self.gpu = add_gpu(
            self.host, "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1b:00.0"
        )
        self.host.files["/proc/driver/nvidia/gpus/0000:1b:00.0/information"] = "GPU UUID:\t GPU-7\n"
        self.drive = add_device(self.host, "pci0000:22/0000:22:01.0/0000:23:00.0", NVME)
        self.host.links["/sys/class/nvme/nvme0/device"] = self.host.links[f"{DEVICES}/{self.drive}"]
        self.plug_in()
        self.reader = SourceReader(PcieSource(), self.host, ORIGIN)

    def plug_in(self) -> None:
        add_nic(self.host, NIC_PATH, "mlx5_0", interface="ens1")
        set_link(self.host, NIC, "32x16", "32x16")

    def read(self) -> Frame:
        outcome = self.reader.run()
        assert outcome.problem == ""
        assert outcome.frame is not None
        return outcome.frame

    def gone(self) -> dict[str, object]:
        event_facts = readings(self.read())
        return {key[0]: value for (name, key), value in event_facts.items() if name == GONE}


def event_facts(event: Event) -> tuple[str, str, dict[str, str]]:
    return event.event_class.name, event.entity.key[0], dict(event.facts)


def test_nics_gpus_drives_and_switches_are_present() -> None:
    run = PcieNodeRun()
    expected = {
        run.gpu,
        run.drive,
        NIC,
        DOWN,
        "0000:17:02.0",
        "0000:16:00.0",
        "0000:15:01.0",
        "0000:22:01.0",
    }
    assert run.gone() == dict.fromkeys(expected, 0)
    assert run.read().events == ()


def test_a_removed_nic_stays_visible_and_is_reported_once() -> None:
    run = PcieNodeRun()
    run.read()
    remove_device(run.host, NIC)
    frame = run.read()
    facts = {"role": "nic", "names": "mlx5_0 ens1", "model": "15b3:1021"}
    assert [event_facts(event) for event in frame.events] == [("pcie_device_gone", NIC, facts)]
    assert readings(frame)[GONE, (NIC,)] == 1
    for _ in range(3):
        later = run.read()
        assert later.events == ()
        assert readings(later)[GONE, (NIC,)] == 1
        assert readings(later)[GONE, (run.gpu,)] == 0
    links = {name for name, key in readings(later) if key == (NIC,)}
    assert links == {GONE}, "no other metric of a missing device is reported"
    (entity,) = [e for e in later.schema.entities if e.key == (NIC,)]
    assert entity.facts["role"] == "nic", "it is described as it last was"


def test_a_nic_that_comes_back_is_reported_and_read_again() -> None:
    run = PcieNodeRun()
    run.read()
    remove_device(run.host, NIC)
    run.read()
    run.read()
    run.plug_in()
    names = [event_facts(event)[0] for event in run.read().events]
    assert names == ["pcie_device_back"]
    again = readings(run.read())
    assert again[GONE, (NIC,)] == 0
    assert again["railscope_pcie_link_width_lanes", (NIC,)] == 16


def test_a_gpu_and_a_drive_are_reported_by_their_names() -> None:
    run = PcieNodeRun()
    run.read()
    for address in (run.gpu, run.drive):
        remove_device(run.host, address)
    found = {event_facts(event)[1]: event_facts(event)[2] for event in run.read().events}
    assert found[run.gpu]["names"] == "GPU-7"
    assert found[run.drive] == {"role": "nvme", "names": "nvme0", "model": "10de:2330"}


def test_a_switch_takes_all_below_it_along() -> None:
    run = PcieNodeRun()
    run.read()
    for address in (NIC, run.gpu, "0000:17:00.0", "0000:17:02.0", "0000:16:00.0"):
        remove_device(run.host, address)
    events = run.read().events
    assert {event_facts(event)[1] for event in events} == {
        NIC,
        run.gpu,
        "0000:17:00.0",
        "0000:17:02.0",
        "0000:16:00.0",
    }
    assert {event_facts(event)[2]["role"] for event in events} == {"nic", "gpu", "bridge"}


def test_a_new_device_is_found_at_the_next_read() -> None:
    run = PcieNodeRun()
    run.read()
    add_device(run.host, "pci0000:22/0000:22:02.0/0000:24:00.0", NVME)
    assert run.read().events == ()
    assert run.gone()["0000:24:00.0"] == 0


def test_virtual_functions_come_and_go_unnoticed() -> None:
    run = PcieNodeRun()
    virtual = add_nic(run.host, NIC_PATH[:-1] + "1", "mlx5_9")
    place = run.host.links[f"{DEVICES}/{virtual}"]
    run.host.links[f"{place}/physfn"] = run.host.links[f"{DEVICES}/{NIC}"]
    assert virtual not in run.gone()
    remove_device(run.host, virtual)
    assert run.read().events == ()


def test_a_bus_that_cannot_be_listed_has_lost_nothing() -> None:
    run = PcieNodeRun()
    run.read()
    denied = run.host.names

    def names(path: str) -> list[str]:
        if path == DEVICES:
            raise DENIED
        return denied(path)

    run.host.names = names  # type: ignore[method-assign]
    frame = run.read()
    assert frame.events == ()
    assert readings(frame)[GONE, (NIC,)] is Absent.DENIED


@given(st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=8))
def test_every_change_is_reported_once_and_in_order(history) -> None:
    """For any sequence, removals and returns of a device alternate, and the last one is current."""
    presence, now = PciPresence(), NodeTimestamp(0, 0)
    devices = {str(n): Entity(PCIE, (str(n),), {"role": "nic"}) for n in range(6)}
    presence.add_devices(list(devices), devices, {})
    expected = dict.fromkeys(devices, True)
    for there in history:
        listed = {str(n) for n in there}
        for event in presence.compare(listed, now):
            address = event.entity.key[0]
            expected[address] = not expected[address]
            assert (event.event_class.name == "pcie_device_back") is expected[address]
        assert expected == {address: address in listed for address in devices}
        known = presence.add_devices(sorted(listed), {a: devices[a] for a in sorted(listed)}, {})
        assert set(known) == set(devices)


def test_the_number_of_followed_devices_is_bounded() -> None:
    presence = PciPresence()
    for start in (0, MAX_DEVICES):
        more = {str(n): Entity(PCIE, (str(n),)) for n in range(start, start + MAX_DEVICES)}
        known = presence.add_devices(list(more), more, {})
    assert set(known) == {str(n) for n in range(MAX_DEVICES)}


def test_the_total_of_the_errors_of_a_node_never_falls() -> None:
    run = PcieNodeRun()
    files = {
        address: f"{run.host.links[f'{DEVICES}/{address}']}/aer_dev_fatal"
        for address in (NIC, run.drive)
    }

    def total(**errors: int) -> object:
        for address, name in ((NIC, "nic"), (run.drive, "drive")):
            if name in errors:
                run.host.files[files[address]] = (
                    f"DLP {errors[name]}\nTOTAL_ERR_FATAL {errors[name]}\n"
                )
        return readings(run.read())["railscope_pcie_all_devices_errors_total", ("fatal",)]

    assert total(nic=3, drive=5) == 8
    assert total(nic=4) == 9
    remove_device(run.host, NIC)
    run.read()
    assert total(drive=6) == 10, "a device that is gone keeps its part"
    run.plug_in()
    run.read()
    assert total(nic=1, drive=6) == 11, "counts from when it was plugged in"
