"""/proc/PID/cgroup in the form of every supported system."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from railscope_agent.owners import OwnerFormatError
from railscope_agent.owners.cgroup import (
    CgroupOwner,
    ContainerOwner,
    NoOwner,
    OwnerNotVisible,
    PodOwner,
    SlurmTask,
    UnitOwner,
    UserOwner,
    VirtualMachineOwner,
    parse_owner,
    unescape_unit_name,
)

UID = "2fc932ce-fdcc-454b-97bd-aadfdeb4c340"
UNDERSCORED = UID.replace("-", "_")
STATIC = "0123456789abcdef0123456789abcdef"
A, B = "a1" * 32, "b2" * 32
BURSTABLE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice"
POD = PodOwner(UID)
SCOPE = "/system.slice/slurmstepd.scope"
ROOTLESS = "/user.slice/user-1000.slice/user@1000.service"


JOB, HASHED = SlurmTask(211, ""), SlurmTask(None, "sEKNKTV3WPV500")

PATHS: dict[str, CgroupOwner] = {
    # Kubernetes
    f"{BURSTABLE}/cri-containerd-{A}.scope": POD,
    f"/kubepods.slice/kubepods-pod{UNDERSCORED}.slice/cri-containerd-{A}.scope": POD,
    f"{BURSTABLE}/crio-{A}.scope": POD,
    f"{BURSTABLE}/crio-{A}.scope/container": POD,
    f"{BURSTABLE}/crio-conmon-{A}.scope": PodOwner(UID),
    f"{BURSTABLE}/docker-{A}.scope": POD,
    f"{BURSTABLE}": PodOwner(UID),
    f"/kubepods/burstable/pod{UID}/{A}": POD,
    f"/kubepods/besteffort/pod{UID}/crio-{A}": POD,
    f"/kubepods/pod{UID}/{A}": POD,
    f"/kubepods/pod{STATIC}/{A}": PodOwner(STATIC),
    f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{STATIC}.slice/cri-containerd-{A}.scope": PodOwner(
        STATIC
    ),
    f"/system.slice/containerd.service/kubepods-burstable-pod{UNDERSCORED}.slice:cri-containerd:{A}": POD,
    f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORED}.slice/cri-containerd-{A}.scope": POD,
    f"/docker/{B}/kubelet/kubepods/burstable/pod{UID}/{A}": POD,
    f"/docker/{B}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORED}.slice/cri-containerd-{A}.scope": POD,
    f"/system.slice/docker-{B}.scope/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UNDERSCORED}.slice/cri-containerd-{A}.scope": POD,
    f"/system.slice/k3s.service/kubepods/burstable/pod{UID}/{A}": POD,
    f"/kubepods/pod{UID}/{A}/docker/{B}": POD,
    # containers outside of pods
    f"/system.slice/docker-{A}.scope": ContainerOwner("docker", A, None),
    f"/system.slice/docker-{A}.scope/init.scope": ContainerOwner("docker", A, None),
    f"/docker/{A}": ContainerOwner("docker", A, None),
    f"/docker/{A}/docker/{B}": ContainerOwner("docker", A, None),
    f"/docker/{A}/user.slice/user-0.slice/session-1.scope": ContainerOwner("docker", A, None),
    f"/machine.slice/libpod-{A}.scope": ContainerOwner("podman", A, None),
    f"/machine.slice/libpod-{A}.scope/container": ContainerOwner("podman", A, None),
    f"/system.slice/training.service/libpod-payload-{A}": ContainerOwner("podman", A, None),
    f"{ROOTLESS}/user.slice/libpod-{A}.scope": ContainerOwner("podman", A, 1000),
    f"{ROOTLESS}/user.slice/libpod-{A}.scope/container": ContainerOwner("podman", A, 1000),
    f"{ROOTLESS}/app.slice/docker-{A}.scope": ContainerOwner("docker", A, 1000),
    f"/system.slice/nerdctl-{A}.scope": ContainerOwner("containerd", A, None),
    f"/default/{A}": ContainerOwner("", A, None),
    f"/machine.slice/libpod-conmon-{A}.scope": UnitOwner(f"libpod-conmon-{A}.scope"),
    f"/docker/{A}0": NoOwner(),
    f"/system.slice/docker-{A}.scopes": NoOwner(),
    # Slurm, v1
    "/slurm/uid_1000/job_211/step_0/task_0": JOB,
    "/slurm/uid_1000/job_211/step_batch": JOB,
    "/slurm/uid_1000/job_211": JOB,
    "/slurm_gpu-1/uid_1000/job_211/step_0/task_3": JOB,
    # Slurm, v2
    f"{SCOPE}/job_211/step_0/user/task_0": JOB,
    f"{SCOPE}/job_211/step_0+1/user/task_special": JOB,
    f"{SCOPE}/job_211/step_extern/user/task_special": JOB,
    f"{SCOPE}/job_211/step_interactive/user/task_0": JOB,
    f"{SCOPE}/job_211/step_0/slurm": JOB,
    f"{SCOPE}/job_211/step_0/slurmish": JOB,
    "/system.slice/gpu-1_slurmstepd.scope/job_211/step_0/user/task_0": JOB,
    f"{SCOPE}/sEKNKTV3WPV500/step_0/user/task_0": HASHED,
    f"{SCOPE}/sEKNKTV3WPV500/step_batch/slurm": HASHED,
    f"{SCOPE}/job_211/step_0/user/task_0/libpod-{A}.scope": JOB,
    f"/kubepods/pod{UID}/{A}{SCOPE}/job_211/step_0/user/task_0": JOB,
    f"{SCOPE}/system": UnitOwner("slurmstepd.scope"),
    f"{SCOPE}/sUKNKTV3WPV500/step_0": UnitOwner("slurmstepd.scope"),
    # libvirt
    r"/machine.slice/machine-qemu\x2d2\x2dinstance\x2d00000001.scope": VirtualMachineOwner(
        "instance-00000001"
    ),
    r"/machine.slice/machine-qemu\x2d2\x2dinstance\x2d00000001.scope/libvirt/emulator": VirtualMachineOwner(
        "instance-00000001"
    ),
    r"/machine.slice/machine-lxc\x2d17\x2db\xc3\xa4r.scope/libvirt": VirtualMachineOwner("bär"),
    "/machine/qemu-1-instance1.libvirt-qemu": VirtualMachineOwner("instance1"),
    "/machine/qemu-1-instance1.libvirt-qemu/vcpu0": VirtualMachineOwner("instance1"),
    "/machine/lab.partition/qemu-2-web.libvirt-qemu": VirtualMachineOwner("web"),
    "/machine/qemu-web.libvirt-qemu": VirtualMachineOwner("web"),
    r"/machine.slice/machine-debian\x2d12.scope": UnitOwner("machine-debian-12.scope"),
    r"/machine.slice/machine-qemu\x2d2\x2dweb.scopes": NoOwner(),
    # system containers
    "/lxc.payload.alpha": ContainerOwner("lxc", "alpha", None),
    "/lxc.payload.lab_alpha": ContainerOwner("lxc", "lab_alpha", None),
    "/lxc.payload/alpha": ContainerOwner("lxc", "alpha", None),
    "/lxc/101/ns": ContainerOwner("lxc", "101", None),
    f"{ROOTLESS}/app.slice/lxc.payload.alpha": ContainerOwner("lxc", "alpha@1000", 1000),
    "/lxc.monitor.alpha": NoOwner(),
    "/machine.slice/systemd-nspawn@alpha.service/payload": UnitOwner(
        "systemd-nspawn@alpha.service"
    ),
    f"/machine.slice/libpod-{A}.scope/lxc.payload.alpha": ContainerOwner("podman", A, None),
    f"{SCOPE}/job_211/step_0/user/task_0/lxc.payload.alpha": JOB,
    f"/system.slice/docker-{A}.scope{SCOPE}/job_211/step_0": ContainerOwner("docker", A, None),
    rf"/system.slice/docker-{A}.scope/machine.slice/machine-qemu\x2d1\x2dweb.scope": ContainerOwner(
        "docker", A, None
    ),
    "/system.slice/incus.service/lxc.payload.alpha": ContainerOwner("lxc", "alpha", None),
    "/system.slice/system-lxc.slice/lxc@alpha.service/lxc.payload.alpha": ContainerOwner(
        "lxc", "alpha", None
    ),
    # people and services
    "/user.slice/user-1000.slice/session-3.scope": UserOwner(1000, "3"),
    "/user.slice/user-0.slice/session-c1.scope": UserOwner(0, "c1"),
    f"{ROOTLESS}/app.slice/jupyter.service": UserOwner(1000, ""),
    "/user.slice/user-1000.slice": UserOwner(1000, ""),
    "/system.slice/foo.service": UnitOwner("foo.service"),
    "/system.slice/system-getty.slice/getty@tty1.service": UnitOwner("getty@tty1.service"),
    r"/system.slice/dev-disk-by\x2dlabel.service": UnitOwner("dev-disk-by-label.service"),
    "/init.scope": UnitOwner("init.scope"),
    "/": NoOwner(),
    "/system.slice": NoOwner(),
    "/user.slice": NoOwner(),
    # outside of this namespace
    f"/../kubepods-pod{UNDERSCORED}.slice/cri-containerd-{A}.scope": OwnerNotVisible(),
    "/../../../system.slice/foo.service": OwnerNotVisible(),
    "/..": OwnerNotVisible(),
    "/..service": UnitOwner("..service"),
}


@pytest.mark.parametrize("path", PATHS)
def test_each_path_has_its_owner(path):
    assert parse_owner(f"0::{path}\n".encode()) == PATHS[path]


@pytest.mark.parametrize("path", PATHS)
def test_cgroup_v1_gives_the_same_owner(path):
    """In cgroup v1 each controller has a line; the line of systemd may contain the service only."""
    lines = [f"{number}:{name}:{path}" for number, name in ((12, "memory"), (3, "cpu,cpuacct"))]
    assert parse_owner("\n".join([*lines, "0::/", ""]).encode()) == PATHS[path]


def test_a_hybrid_server_finds_a_job_only_by_its_controllers():
    content = (
        b"11:memory:/slurm/uid_1000/job_211/step_0/task_0\n"
        b"4:devices:/slurm/uid_1000/job_211/step_0\n"
        b"1:name=systemd:/system.slice/slurmd.service\n"
        b"0::/user.slice/user-1000.slice/session-3.scope\n"
    )
    assert parse_owner(content) == JOB


GUESTS = [
    path
    for path in PATHS
    if any(mark in path for mark in ("/lxc.payload", "/lxc/", "nspawn@", r"machine-", ".libvirt-"))
    and not path.endswith(".scopes")
]
DELEGATED = [
    "/system.slice/foo.service",
    "/system.slice/app-web.slice/web@1.service",
    "/system.slice/run-r1f.scope",
    "/foo.service",
    "/system.slice/user@1000.service",
    "/system.slice/k3-dashboard.service",
    "/system.slice/notslurmd.service",
]


@pytest.mark.parametrize("path", GUESTS)
def test_no_group_that_a_guest_names_is_its_owner(path):
    for below in PATHS:
        assert parse_owner(f"0::{path}{below.replace('..', 'x')}\n".encode()) == PATHS[path]


@pytest.mark.parametrize("unit", DELEGATED)
def test_a_unit_that_manages_nothing_of_the_node_owns_whatever_it_names(unit):
    for below in PATHS:
        owner = parse_owner(f"0::{unit}{below.replace('..', 'x')}\n".encode())
        assert owner == UnitOwner(unit.rpartition("/")[2])


@pytest.mark.parametrize(
    "service", ["k3s-agent", "kubelet", "rke2-server", "snap.microk8s.daemon-kubelite", "crio"]
)
def test_services_that_run_pods_name_them(service):
    path = f"/system.slice/{service}.service/kubepods/burstable/pod{UID}/{A}"
    assert parse_owner(f"0::{path}\n".encode()) == POD


def test_jobs_below_a_service_of_slurmd_are_jobs():
    for service in ("slurmd", "slurmd@gpu-1"):
        path = f"/system.slice/{service}.service/slurm/uid_1000/job_211/step_0"
        assert parse_owner(f"0::{path}\n".encode()) == JOB


def test_a_user_cannot_make_directories_that_name_another_owner():
    for forged in (
        f"{SCOPE}/job_211/step_0/user/task_0",
        f"/kubepods/pod{UID}/{A}",
        r"/machine-qemu\x2d2\x2da.scope",
        "/root.service",
    ):
        assert parse_owner(f"0::{ROOTLESS}{forged}\n".encode()) == (
            ContainerOwner("", A, 1000) if A in forged else UserOwner(1000, "")
        )


def test_a_group_that_is_gone_keeps_its_owner():
    assert parse_owner(f"0::/docker/{A} (deleted)\n".encode()) == ContainerOwner("docker", A, None)


def test_names_of_controllers_may_hold_colons_no_more_than_two_count():
    assert parse_owner(b"1:name=systemd:/system.slice/a:b.service\n") == UnitOwner("a:b.service")


@pytest.mark.parametrize("content", [b"no line\n", b"0:/a\n", b"x::/a\n", b"0::a\n", b"0::\n"])
def test_an_invalid_cgroup_list_is_reported(content):
    with pytest.raises(OwnerFormatError, match="invalid line of /proc/PID/cgroup"):
        parse_owner(content)


def test_a_kernel_without_control_groups():
    assert parse_owner(b"") == NoOwner()


def test_every_process_of_this_machine_has_an_owner():
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # some processes may end meanwhile, but not all
            found.append(parse_owner((directory / "cgroup").read_bytes()))
    assert found


@given(st.binary())
def test_any_bytes_have_an_owner_or_are_not_a_list(content):
    with contextlib.suppress(OwnerFormatError):
        parse_owner(content)


PIECES = st.sampled_from(
    [
        "/",
        "kubepods",
        "-pod",
        UID,
        STATIC,
        A,
        "cri-containerd-",
        ".scope",
        ".slice",
        ":",
        "docker",
        "slurmstepd.scope",
        "/job_",
        "9" * 30,
        "/step_",
        "s",
        "..",
        "machine-qemu",
        "/lxc.payload.",
        r"\x2d",
        r"\xff",
        "user.slice/user-",
        "session-",
        "/slurm/uid_",
        "libvirt-qemu",
        ".service",
        " (deleted)",
        "\x00",
    ]
)


@given(st.lists(PIECES).map("".join))
def test_any_path_has_an_owner(path):
    assert parse_owner(f"0::/{path}\n".encode()) is not None


@given(st.text())
def test_names_of_systemd_come_back(name):
    escaped = "".join(rf"\x{byte:02x}" for byte in name.encode(errors="replace"))
    assert unescape_unit_name(escaped) == name.encode(errors="replace").decode()
