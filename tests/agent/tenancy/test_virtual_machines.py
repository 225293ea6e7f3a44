"""GPUs passed through to virtual machines."""

from __future__ import annotations

from typing import Any

import pytest
from support.machine import DENIED
from support.tenancy import LISTED, PolledTenancy, event_summaries, node, pod, pod_group, uuid

from railscope_agent.owners import OwnerFormatError
from railscope_agent.owners.runtimes import LibvirtDomain, parse_domain, parse_qemu_command
from railscope_agent.sampling.row_builder import RowBuilder
from railscope_agent.sources.nvidia.bus_state import GpuDeviceSource

ADDRESS = "0000:3b:00.0"
RUNNING = "/run/libvirt/qemu"
PROJECT = "5d1f6a0c8f5a4bb69d2b3f6f6d6f0f11"
DEFINITION = f"""
<domain type='kvm' id='2'>
  <name>instance-0000002a</name>
  <uuid>1b6a5c0e-8d0e-4d4e-9a57-7a3a0e4d5e11</uuid>
  <metadata>
    <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
      <nova:name>train-vm</nova:name>
      <nova:owner>
        <nova:user uuid="8f">eva</nova:user>
        <nova:project uuid="{PROJECT}">vision</nova:project>
      </nova:owner>
    </nova:instance>
  </metadata>
  <devices>
    <graphics type='vnc' passwd='secret'/>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <driver name='vfio'/>
      <source><address domain='0x0000' bus='0x3b' slot='0x00' function='0x0'/></source>
      <address type='pci' domain='0x0000' bus='0x06' slot='0x00' function='0x0'/>
    </hostdev>
    <hostdev mode='subsystem' type='mdev' model='vfio-pci'>
      <source><address uuid='c2177883-f1bb-47f0-914d-32a22e3a8804'/></source>
    </hostdev>
  </devices>
</domain>"""
MACHINE = LibvirtDomain(
    name="instance-0000002a",
    uuid="1b6a5c0e-8d0e-4d4e-9a57-7a3a0e4d5e11",
    pci_addresses=(ADDRESS,),
    mediated=("c2177883-f1bb-47f0-914d-32a22e3a8804",),
    project="vision",
    project_id=PROJECT,
)


def answer(**more: Any) -> dict[str, Any]:
    return {
        "name": "web",
        "uuid": "u",
        "pci_addresses": [ADDRESS],
        "mediated": [],
        "project": "",
        "project_id": "",
        **more,
    }


def handed_over(gpus=1, driver="vfio-pci"):
    host = node(gpus)
    directory = f"/sys/bus/pci/devices/{ADDRESS}"
    host.files |= {f"{directory}/vendor": "0x10de\n", f"{directory}/class": "0x030200\n"}
    host.links[f"{directory}/driver"] = f"/sys/bus/pci/drivers/{driver}"
    host.files[f"/sys/bus/pci/drivers/{driver}/bind"] = ""
    return host


def test_a_definition_and_the_state_that_wraps_it():
    assert parse_domain(DEFINITION.encode()) == MACHINE
    state = f"<domstatus state='running' pid='77'>{DEFINITION}</domstatus>"
    assert parse_domain(state.encode()) == MACHINE


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<domain",
        "<network/>",
        "<!DOCTYPE a [<!ENTITY b 'c'>]><domain/>",
        DEFINITION.replace("0x3b", "lots"),
    ],
)
def test_invalid_domain_definitions(text):
    with pytest.raises(OwnerFormatError):
        parse_domain(text.encode())


def test_command_lines():
    arguments = [
        "/usr/bin/qemu-system-x86_64", "-name", "guest=web,debug-threads=on", "-uuid", "u",
        "-device", '{"driver":"vfio-pci","host":"0000:3B:00.0","id":"hostdev0"}',
        "-device", "vfio-pci,host=5e:00.0,id=hostdev1", "-device", "virtio-net,host=5f:00.0",
    ]  # fmt: skip
    found = parse_qemu_command("\0".join(arguments).encode() + b"\0")
    assert found == LibvirtDomain("web", "u", (ADDRESS, "0000:5e:00.0"))
    assert parse_qemu_command(b"python3\0-device\0vfio-pci,host=5e:00.0\0") is None
    assert parse_qemu_command(b"") is None


MEDIATED = "4b20d080-1b54-4048-85b3-a6a62d165c01"


@pytest.mark.parametrize(
    ("device", "addresses", "mediated"),
    [
        # Documentation/driver-api/vfio-mediated-device.rst.
        (f"vfio-pci,sysfsdev=/sys/bus/mdev/devices/{MEDIATED}", (), (MEDIATED,)),
        # Proxmox VE: a vGPU of mdev, a virtual function, a GPU in one without a domain.
        (f"vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:3b:00.0/{MEDIATED},id=hostpci0,bus=ich9-pcie-port-1", (), (MEDIATED,)),
        ("vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:3B:00.4,id=hostpci0", ("0000:3b:00.4",), ()),
        ("vfio-pci,host=3b:00.0,id=hostpci0.0,bus=ich9-pcie-port-1,addr=0x0.0,multifunction=on", ("0000:3b:00.0",), ()),
        (f'{{"driver":"vfio-pci","sysfsdev":"/sys/bus/mdev/devices/{MEDIATED}","id":"hostdev0"}}', (), (MEDIATED,)),
        ('{"driver":"vfio-pci","id":"a","sysfsdev" : "/sys/bus/pci/devices/0000:3b:00.0/"}', ("0000:3b:00.0",), ()),
        ("virtio-net-pci,sysfsdev=/sys/bus/pci/devices/0000:3b:00.0", (), ()),
        # sysfsdev replaces host: hw/vfio/pci.c, vfio_realize.
        ("vfio-pci,host=3b:00.0,sysfsdev=/sys/bus/pci/devices/0000:5e:00.0", ("0000:5e:00.0",), ()),
        ("driver=vfio-pci,sysfsdev=/sys/bus/pci/devices/0000:5e:00.0/,host=3b:00.0", ("0000:5e:00.0",), ()),
        ('{"host":"3b:00.0","driver":"vfio-pci","sysfsdev":"/sys/bus/pci/devices/0000:5e:00.0"}', ("0000:5e:00.0",), ()),
        ("vfio-pci-nohotplug,host=00003b00:5E:00.0,id=a", ("00003b00:5e:00.0",), ()),
        # Texts of other properties and devices.
        ("vfio-pci,id=host=3b:00.0", (), ()),
        ("virtio-blk,serial=vfio-pci,host=3b:00.0", (), ()),
        ("vfio-pci,id=a,,host=3b:00.0,,,host=5e:00.0", ("0000:5e:00.0",), ()),
        ('{"driver":"vfio-pci","host":', (), ()),
        ("", (), ()),
    ],
)  # fmt: skip
def test_devices_of_a_command_line(device, addresses, mediated):
    found = parse_qemu_command(f"/usr/bin/kvm\x00-name\x00web\x00-device\x00{device}".encode())
    assert found == LibvirtDomain("web", "", addresses, mediated)
    for option in ("-name", "-serial", "-smbios", "-fw_cfg", "-append"):
        found = parse_qemu_command(f"/usr/bin/kvm\0-S\0{option}\0{device}".encode())
        assert found is not None
        assert found.pci_addresses == found.mediated == (), "a text of a user"


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("guest=web,debug-threads=on", "web"),
        ("guest=web,,a,debug-threads=on", "web,a"),
        ("debug-threads=on,guest=web", "web"),
        ("web,debug-threads=on", "web"),
        ("web,,b", "web,b"),
        ("a,,guest=b", "a,guest=b"),
        ("a,,,guest=b", "b"),
        ("", ""),
    ],
)
def test_commas_in_the_name_of_a_machine_are_doubled(option, name):
    found = parse_qemu_command(f"/usr/bin/kvm\0-name\0{option}".encode())
    assert found is not None
    assert found.name == name


def test_a_machine_of_libvirt_is_one_by_its_uuid():
    host = handed_over()
    identity = "4b20d080-1b54-4048-85b3-a6a62d165c01"
    host.files |= {f"{RUNNING}/web.xml": "", "/proc/77/comm": "qemu-kvm\n"}
    host.calls[f"owner.domain({RUNNING}/web.xml)"] = answer(name="web", uuid=identity)
    host.calls["owner.machine(77)"] = answer(name="renamed", uuid=identity)
    assert [each[2] for each in event_summaries(PolledTenancy(host).poll())] == ["web"]


def test_a_machine_has_its_gpu_while_it_runs():
    host = handed_over()
    looked = PolledTenancy(host)
    looked.poll()
    host.files[f"{RUNNING}/web.xml"] = ""
    host.calls[f"owner.domain({RUNNING}/web.xml)"] = answer(project_id=PROJECT)
    (began,) = looked.poll()
    assert event_summaries([began]) == [("claim_start", "libvirt", "web", f"pci:{ADDRESS}")]
    assert began.facts["owner"] == PROJECT
    assert looked.value("gpu_claims", f"pci:{ADDRESS}") == 1
    host.calls[f"owner.domain({RUNNING}/web.xml)"] = DENIED
    assert looked.poll() == []
    del host.files[f"{RUNNING}/web.xml"]
    assert event_summaries(looked.poll()) == [("claim_end", "libvirt", "web", f"pci:{ADDRESS}")]


def test_a_gpu_that_xen_passes_through():
    """The module is xen-pciback, its driver pciback: drivers/xen/xen-pciback/pci_stub.c."""
    host = handed_over(driver="pciback")
    host.files[f"{RUNNING}/web.xml"] = ""
    host.calls[f"owner.domain({RUNNING}/web.xml)"] = answer()
    (began,) = PolledTenancy(host).poll()
    assert event_summaries([began]) == [("claim_start", "libvirt", "web", f"pci:{ADDRESS}")]
    source = GpuDeviceSource()
    (column,) = source.probe(host).columns
    table = RowBuilder(1)
    source.read(host, table)
    assert column[0].states[table.values[0]] == "virtual_machine"


def test_a_gpu_that_the_driver_had_keeps_its_name():
    host = handed_over(2)
    host.calls["nvml.nvmlDeviceGetPciInfo(1)"] = {"busId": "00000000:3B:00.0"}
    looked = PolledTenancy(host)
    looked.poll()
    host.calls["nvml.nvmlDeviceGetCount()"] = 1
    host.files[f"{RUNNING}/web.xml"] = ""
    host.calls[f"owner.domain({RUNNING}/web.xml)"] = answer()
    assert event_summaries(looked.poll()) == [("claim_start", "libvirt", "web", uuid(1))]


def test_metadata_may_be_in_the_definition_only():
    host = handed_over()
    host.files[f"{RUNNING}/web.xml"] = ""
    host.calls[f"owner.domain({RUNNING}/web.xml)"] = answer()
    host.calls["owner.domain(/etc/libvirt/qemu/web.xml)"] = answer(project_id=PROJECT)
    (began,) = PolledTenancy(host).poll()
    assert began.facts["owner"] == PROJECT


def test_a_machine_without_libvirt():
    host = handed_over()
    host.files |= {"/proc/77/comm": "qemu-system-x86\n", "/proc/78/comm": "bash\n"}
    host.calls["owner.machine(77)"] = answer(name="bare")
    looked = PolledTenancy(host)
    assert event_summaries(looked.poll()) == [("claim_start", "libvirt", "bare", f"pci:{ADDRESS}")]
    assert looked.poll() == []
    assert host.asked["owner.machine(77)"] == 1
    del host.files["/proc/77/comm"]
    assert event_summaries(looked.poll()) == [("claim_end", "libvirt", "bare", f"pci:{ADDRESS}")]


def test_a_machine_that_cannot_be_read_yet_is_looked_at_again():
    host = handed_over()
    host.files["/proc/77/comm"] = "qemu-system-x86\n"
    host.calls["owner.machine(77)"] = answer(name="bare")
    looked = PolledTenancy(host)
    looked.poll()
    host.files["/proc/78/comm"] = "qemu-system-x86\n"
    host.calls["owner.machine(78)"] = DENIED
    assert looked.poll() == [], "what cannot be read ends nothing"
    host.calls["owner.machine(78)"] = answer(name="late")
    assert event_summaries(looked.poll()) == [("claim_start", "libvirt", "late", f"pci:{ADDRESS}")]


@pytest.mark.parametrize("name", [ADDRESS, "45"])
def test_a_virtual_machine_in_a_pod_is_reported_as_the_pod(name):
    host = handed_over()
    host.files[f"/sys/kernel/iommu_groups/45/devices/{ADDRESS}/vendor"] = ""
    host.files["/sys/kernel/iommu_groups/45/devices/0000:3b:00.1/vendor"] = ""
    resource = "nvidia.com/GA100_A100_PCIE_40GB"
    nic = pod("router", "0000:5e:00.2", resource="nvidia.com/rail_vf")
    host.calls[LISTED] = [pod("virt-launcher-vm", name, resource=resource), nic]
    host.files |= {
        "/proc/77/comm": "qemu-kvm\n",
        "/proc/77/cgroup": f"0::{pod_group(1)[1]}\n",
    }
    host.calls["owner.machine(77)"] = answer(name="research_vm")
    assert event_summaries(PolledTenancy(host).poll()) == [
        ("claim_start", "kubernetes", "research/virt-launcher-vm", f"pci:{ADDRESS}"),
    ]


VIRTUAL = "0000:5e:00.4"


def with_virtual_functions(driver):
    """Return a node whose GPU 0 has a virtual function, and whose GPU 1 has none."""
    host = node(2)
    for gpu, address in enumerate(("0000:5e:00.0", "0000:5f:00.0")):
        host.calls[f"nvml.nvmlDeviceGetPciInfo({gpu})"] = {"busId": f"0000{address.upper()}"}
    for address in ("0000:5e:00.0", "0000:5f:00.0", VIRTUAL):
        directory = f"/sys/bus/pci/devices/{address}"
        host.files |= {f"{directory}/vendor": "0x10de\n", f"{directory}/class": "0x030200\n"}
        host.links[f"{directory}/driver"] = "/sys/bus/pci/drivers/nvidia"
    virtual = f"/sys/bus/pci/devices/{VIRTUAL}"
    host.links[f"{virtual}/physfn"] = "/sys/bus/pci/devices/0000:5e:00.0"
    host.links[f"{virtual}/driver"] = f"/sys/bus/pci/drivers/{driver}"
    host.files |= {f"/sys/bus/pci/drivers/{each}/bind": "" for each in ("nvidia", driver)}
    return host


@pytest.mark.parametrize("driver", ["nvidia", "vfio-pci", "nvidia-vgpu-vfio"])
def test_a_virtual_function_is_a_share_of_its_gpu_whatever_its_driver(driver):
    host = with_virtual_functions(driver)
    host.files[f"{RUNNING}/web.xml"] = ""
    host.calls[f"owner.domain({RUNNING}/web.xml)"] = answer(pci_addresses=[VIRTUAL])
    (began,) = PolledTenancy(host).poll()
    assert event_summaries([began]) == [("claim_start", "libvirt", "web", uuid(0))]
    assert (began.facts["device"], began.facts["exclusive"]) == (VIRTUAL, "false")


@pytest.mark.parametrize("driver", ["nvidia", "vfio-pci"])
@pytest.mark.parametrize("name", [VIRTUAL, "45"])
def test_a_pod_with_a_virtual_function_has_a_share_of_its_gpu(driver, name):
    host = with_virtual_functions(driver)
    host.files[f"/sys/kernel/iommu_groups/45/devices/{VIRTUAL}/vendor"] = ""
    host.calls[LISTED] = [pod("vm", name, resource="nvidia.com/NVIDIA_A16-4Q")]
    (began,) = PolledTenancy(host).poll()
    assert event_summaries([began]) == [("claim_start", "kubernetes", "research/vm", uuid(0))]
    assert (began.facts["device"], began.facts["exclusive"]) == (VIRTUAL, "false")


def test_a_virtual_gpu():
    host = handed_over()
    identity = "c2177883-f1bb-47f0-914d-32a22e3a8804"
    host.calls["nvml.nvmlDeviceGetPciInfo(0)"] = {"busId": "00000000:5E:00.0"}
    there = f"/sys/devices/pci0000:5d/0000:5d:01.0/0000:5e:00.0/{identity}"
    host.links[f"/sys/bus/mdev/devices/{identity}"] = there
    host.files[f"{there}/mdev_type/name"] = "GRID"
    host.files[f"{RUNNING}/web.xml"] = ""
    host.calls[f"owner.domain({RUNNING}/web.xml)"] = answer(pci_addresses=[], mediated=[identity])
    (began,) = PolledTenancy(host).poll()
    assert event_summaries([began]) == [("claim_start", "libvirt", "web", uuid(0))]
    assert (began.facts["device"], began.facts["exclusive"]) == (identity, "false")
