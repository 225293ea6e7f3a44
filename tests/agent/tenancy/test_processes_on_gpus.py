"""Processes on GPUs: unclaimed use, and the owners that are trusted."""

from __future__ import annotations

import pytest
from support.machine import DENIED
from support.tenancy import (
    LISTED,
    PolledTenancy,
    cut,
    end_process,
    event_summaries,
    keeps_pod,
    mig_uuid,
    node,
    pod,
    pod_group,
    start_process,
    uuid,
)

from railscope.settings import SettingsError
from railscope_agent.config import TenancySettings
from railscope_agent.host import NvmlError

BEGAN, ENDED = "unclaimed_use_start", "unclaimed_use_end"
HEX = "ab" * 32


def test_unclaimed_use_is_reported_at_the_second_poll():
    host = node()
    looked = PolledTenancy(host)
    looked.poll()
    start_process(host, 0, 4711, "/user.slice/user-1000.slice/session-3.scope", ticks=99_999_999)
    assert looked.poll() == []
    first_ns = host.clock.now().wall_ns
    assert looked.value("gpu_unclaimed_processes", uuid(0)) == 1
    (began,) = looked.poll()
    assert event_summaries([began]) == [(BEGAN, "systemd", "session-3", uuid(0))]
    assert began.facts["level"] == "process"
    assert began.facts["owner"] == "1000"
    assert began.facts["pids"] == "4711"
    assert began.facts["start_ns"] == str(first_ns)
    assert began.facts["uncertainty_ns"] == str(5 * 10**9)
    assert looked.poll() == []
    end_process(host, 0, 4711)
    (ended,) = looked.poll()
    assert (ended.event_class.name, ended.entity) == (ENDED, began.entity)
    assert looked.value("gpu_unclaimed_processes", uuid(0)) == 0


@pytest.mark.parametrize("namespace", ["evil", "gpu-operators", "kube-system.evil", "nvidia"])
def test_the_name_of_a_program_hides_no_use(namespace):
    """Of all namespaces but those of the system, also on a GPU that others share."""
    host = node()
    group = keeps_pod(host, 9, "miner", namespace=namespace)
    host.calls[LISTED] = [pod("a", f"{uuid(0)}::0"), pod("b", f"{uuid(0)}::1")]
    start_process(host, 0, 11, group, comm="nvidia-cuda-mps")
    looked = PolledTenancy(host)
    looked.poll()
    assert event_summaries(looked.poll()) == [(BEGAN, "kubernetes", f"{namespace}/miner", uuid(0))]


@pytest.mark.parametrize("namespace", ["gpu-operator", "nvidia-device-plugin"])
def test_the_server_of_mps_in_a_pod_computes_for_those_that_share_the_gpu(namespace):
    """Of the mps-control-daemon of NVIDIA/k8s-device-plugin. It accounts for no use of a GPU that is a pod's alone."""
    host = node()
    server = keeps_pod(host, 9, "mps-control-daemon-x7", namespace=namespace)
    host.calls[LISTED] = [pod("a", f"{uuid(0)}::0"), pod("b", f"{uuid(0)}::1"), pod("c", uuid(1))]
    for gpu in (0, 1):
        start_process(host, gpu, 11, server, comm="nvidia-cuda-mps")
    looked = PolledTenancy(host)
    looked.poll()
    name = f"{namespace}/mps-control-daemon-x7"
    assert event_summaries(looked.poll()) == [(BEGAN, "kubernetes", name, uuid(1))]
    start_process(host, 0, 12, server, comm="python3")
    looked.poll()
    assert event_summaries(looked.poll()) == [(BEGAN, "kubernetes", name, uuid(0))], (
        "another program of the same pod"
    )


def test_the_manager_of_vgpus_computes_for_the_machines_that_have_them():
    host = node()
    for gpu in (0, 1):
        start_process(host, gpu, 11, "/system.slice/nvidia-vgpu-mgr.service", comm="vgpu")
    host.calls[LISTED] = [pod("vm", uuid(0))]
    looked = PolledTenancy(host)
    looked.poll()
    assert event_summaries(looked.poll()) == [
        (BEGAN, "systemd", "nvidia-vgpu-mgr.service", uuid(1))
    ]


def test_use_is_not_older_than_its_process():
    host = node()
    looked = PolledTenancy(host)
    now_ticks = host.clock.now().boot_ns // 10_000_000
    start_process(host, 0, 1, "/system.slice/miner.service", ticks=now_ticks + 400)
    looked.poll()
    (began,) = looked.poll()
    assert began.facts["uncertainty_ns"] == str(10**9), "it was started one second before"


def test_unclaimed_use_of_one_poll_is_counted_and_not_reported():
    host = node()
    looked = PolledTenancy(host)
    start_process(host, 0, 4711, "/system.slice/cron.service")
    looked.poll()
    end_process(host, 0, 4711)
    assert looked.poll() == []
    assert looked.poll() == []


def test_a_pods_processes_are_its_own_and_no_other_pods():
    host = node()
    group = keeps_pod(host, 1, "train")
    other = keeps_pod(host, 2, "thief")
    host.calls[LISTED] = [pod("train", uuid(0))]
    start_process(host, 0, 11, group)
    start_process(host, 0, 12, other)
    looked = PolledTenancy(host)
    looked.poll()
    assert looked.value("gpu_unclaimed_processes", uuid(0)) == 1
    assert event_summaries(looked.poll()) == [(BEGAN, "kubernetes", "research/thief", uuid(0))]


def test_a_pod_without_a_known_name_is_the_holder_of_the_gpu():
    host = node()
    host.calls[LISTED] = [pod("train", uuid(0))]
    start_process(host, 0, 11, pod_group(1)[1])
    start_process(host, 1, 12, pod_group(2)[1])
    looked = PolledTenancy(host)
    looked.poll()
    assert event_summaries(looked.poll()) == [(BEGAN, "kubernetes", pod_group(2)[0], uuid(1))]


def test_while_the_kubelet_is_unavailable_no_pod_is_reported():
    host = node()
    group = keeps_pod(host, 1, "train")
    host.calls[LISTED] = [pod("train", uuid(0))]
    looked = PolledTenancy(host)
    looked.poll()
    host.calls[LISTED] = DENIED
    start_process(host, 1, 12, keeps_pod(host, 2, "late"))
    start_process(host, 0, 13, group)
    start_process(host, 1, 14, "/system.slice/miner.service")
    looked.poll()
    assert event_summaries(looked.poll()) == [(BEGAN, "systemd", "miner.service", uuid(1))]


def test_processes_of_a_mig_device():
    host = node(1)
    cut(host, 0, [("3g.40gb", 0, 4), ("3g.40gb", 4, 4)])
    group = keeps_pod(host, 1, "train")
    host.calls[LISTED] = [pod("train", mig_uuid(0, 0), resource="nvidia.com/mig-3g.40gb")]
    for place, pid in ((0, 11), (1, 12)):
        instance = {"gpuInstanceId": place + 1, "computeInstanceId": 0}
        start_process(host, mig_uuid(0, place), pid, group, listed=instance)
    looked = PolledTenancy(host)
    looked.poll()
    (began,) = looked.poll()
    assert began.facts["device"] == mig_uuid(0, 1)
    assert (began.facts["compute"], began.facts["pids"]) == ("480-840", "12")


def test_a_trusted_owner_holds_the_gpus_of_its_processes():
    host = node()
    host.calls[f"owner.container({HEX},team)"] = {"name": "jupyter", "label": "vision"}
    start_process(host, 0, 11, f"/system.slice/docker-{HEX}.scope")
    start_process(host, 0, 12, f"/system.slice/docker-{HEX}.scope")
    start_process(host, 1, 13, "/system.slice/miner.service")
    looked = PolledTenancy(host, TenancySettings(trusted_owners="docker", owner_label="team"))
    (began,) = looked.poll()
    assert event_summaries([began]) == [("claim_start", "docker", "jupyter", uuid(0))]
    assert began.facts["owner"] == "vision"
    assert began.facts["level"] == "node_plugin"
    assert (began.facts["pids"], began.facts["exclusive"]) == ("11 12", "false")
    assert event_summaries(looked.poll()) == [(BEGAN, "systemd", "miner.service", uuid(1))]
    end_process(host, 0, 11)
    assert looked.poll() == []
    end_process(host, 0, 12)
    assert event_summaries(looked.poll()) == [("claim_end", "docker", "jupyter", uuid(0))]


def test_an_unknown_owner_is_an_invalid_setting():
    with pytest.raises(
        SettingsError, match=r"invalid tenancy\.trusted_owners: rkt: expected owners"
    ):
        PolledTenancy(node(), TenancySettings(trusted_owners="docker rkt"))


@pytest.mark.parametrize(
    ("group", "source", "workload"),
    [
        (f"/system.slice/docker-{HEX}.scope", "docker", HEX),
        (f"/machine.slice/libpod-{HEX}.scope", "podman", HEX),
        (f"/system.slice/crio-{HEX}.scope", "cri-o", HEX),
        (f"/system.slice/cri-containerd-{HEX}.scope", "containerd", HEX),
        ("/system.slice/miner.service", "systemd", "miner.service"),
        ("/machine.slice/machine-qemu\\x2d1\\x2dweb.scope", "libvirt", "web"),
        ("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", "slurm", "7"),
        ("/", "process", "python3"),
    ],
)
def test_each_kind_of_owner(group, source, workload):
    host = node()
    start_process(host, 1, 11, group)
    looked = PolledTenancy(host)
    first, second = looked.poll(), looked.poll()
    if source == "slurm":  # started by Slurm: nothing else is known about the job
        assert event_summaries(first) == [("claim_start", source, workload, uuid(1))]
    else:
        assert event_summaries(second) == [(BEGAN, source, workload, uuid(1))]


def test_a_process_that_cannot_be_seen_may_be_that_of_any_claim():
    host = node()
    host.calls[LISTED] = [pod("train", uuid(0))]
    for gpu in (0, 1):
        key = f"nvml.nvmlDeviceGetComputeRunningProcesses({gpu})"
        host.calls[key] = [{"pid": 50 + gpu, "usedGpuMemory": 1}]
    looked = PolledTenancy(host)
    for _ in range(2):
        looked.poll()
    assert looked.value("gpu_unclaimed_processes", uuid(0)) == 0
    assert looked.value("gpu_unclaimed_processes", uuid(1)) == 1
    assert event_summaries(looked.poll()) == [(BEGAN, "process", "51", uuid(1))]
    assert "PID and cgroup namespaces" in looked.findings_about("processes")[0][2]


def test_a_shared_service_on_a_claimed_gpu_is_not_unclaimed_use():
    host = node()
    host.calls[LISTED] = [pod("train", uuid(0))]
    start_process(host, 0, 11, "/system.slice/nvidia-mps.service", comm="nvidia-cuda-mps")
    start_process(host, 1, 11, "/system.slice/nvidia-mps.service", comm="nvidia-cuda-mps")
    looked = PolledTenancy(host)
    looked.poll()
    assert [(e.entity.key[0]) for e in looked.poll()] == [uuid(1)]


def test_the_administrators_own_use():
    host = node()
    start_process(host, 1, 11, "/system.slice/dcgm-check.service")
    looked = PolledTenancy(host, TenancySettings(system_owners="dcgm-check.service"))
    looked.poll()
    (began,) = looked.poll()
    assert began.facts["system"] == "true"


def test_a_pid_that_is_used_again_is_another_process():
    host = node()
    start_process(host, 0, 11, "/system.slice/one.service", ticks=5)
    looked = PolledTenancy(host)
    looked.poll()
    assert event_summaries(looked.poll()) == [(BEGAN, "systemd", "one.service", uuid(0))]
    end_process(host, 0, 11)
    start_process(host, 0, 11, "/system.slice/two.service", ticks=6)
    assert event_summaries(looked.poll()) == [(ENDED, "systemd", "one.service", uuid(0))]
    assert event_summaries(looked.poll()) == [(BEGAN, "systemd", "two.service", uuid(0))]


def test_a_driver_that_does_not_answer_ends_no_use():
    host = node()
    start_process(host, 0, 11, "/system.slice/one.service")
    looked = PolledTenancy(host)
    looked.poll()
    assert len(looked.poll()) == 1
    key = "nvml.nvmlDeviceGetComputeRunningProcesses(0)"
    listed = host.calls[key]
    host.calls[key] = NvmlError(15)
    assert looked.poll() == []
    assert looked.value("gpu_unclaimed_processes", uuid(0)) == "gone"
    host.calls[key] = listed
    assert looked.poll() == []
    host.calls["nvml.nvmlDeviceGetCount()"] = 0
    assert looked.poll() == []


def test_a_claim_that_comes_later_ends_use_without_one():
    host = node()
    group = keeps_pod(host, 1, "train")
    host.calls[LISTED] = []
    start_process(host, 0, 11, group)
    looked = PolledTenancy(host)
    looked.poll()
    assert len(looked.poll()) == 1
    host.calls[LISTED] = [pod("train", uuid(0))]
    assert [event.event_class.name for event in looked.poll()] == ["claim_start", ENDED]


def test_control_groups_are_read_once():
    host = node()
    reads: list[str] = []
    start_process(host, 0, 11, "/system.slice/one.service")
    host.files["/proc/11/cgroup"] = lambda: reads.append("group") or "0::/system.slice/one.service"
    looked = PolledTenancy(host)
    for _ in range(5):
        looked.poll()
    assert len(reads) == 1


def test_use_of_a_gpu_that_is_lost_goes_on():
    host = node()
    start_process(host, 1, 11, "/system.slice/one.service")
    looked = PolledTenancy(host)
    looked.poll()
    (began,) = looked.poll()
    host.calls["nvml.nvmlDeviceGetCount()"] = 1
    for _ in range(3):
        assert looked.poll() == []
    host.calls["nvml.nvmlDeviceGetCount()"] = 2
    assert looked.poll() == []
    end_process(host, 1, 11)
    (ended,) = looked.poll()
    assert ended.entity == began.entity
