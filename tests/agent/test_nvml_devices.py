"""MIG devices, processes, virtual GPUs, GPM and events, through the real nvidia-ml-py."""

from __future__ import annotations

from support.full_gpus import full_gpus, nvml_sources
from support.standin import NO_INSTANCE, NvmlReaders, NvmlStandin, StandinHost, code_of, scenario
from support.standin_table import error

from railscope.reading import Reading
from railscope_agent.host.nvml import Nvml
from railscope_agent.host.nvml_events import MAX_QUEUED_EVENTS
from railscope_agent.host.nvml_gpm import LONGEST_NS, SHORTEST_NS

XID, MIG_CHANGE = 0x8, 0x100
SECOND_US = 1_000_000


def of_mig(run: NvmlReaders, gpu: int, uuid: str, stream: str = "mig") -> dict[str, Reading]:
    """Return the readings of a MIG device at the last tick, by metric."""
    return {
        name: reading
        for (name, key), reading in run.of(gpu, stream).items()
        if key[:2] == (f"GPU-{gpu}", uuid) and len(key) == 2
    }


@scenario()
def test_mig_devices_are_found_with_the_holes_between_them(standin: NvmlStandin) -> None:
    standin.load(full_gpus(2, cut=[1]))
    nvml = Nvml()
    assert nvml.call("nvmlDeviceGetMigDevices", 0) == []
    assert nvml.call("nvmlDeviceGetMigDevices", 1) == [
        {
            "uuid": "MIG-1-0",
            "index": 0,
            "gpu": 7,
            "compute": 0,
            "most": 3,
            "start": 0,
            "size": 1,
        },
        {
            "uuid": "MIG-1-2",
            "index": 2,
            "gpu": 9,
            "compute": 0,
            "most": 3,
            "start": 2,
            "size": 1,
        },
    ]
    assert standin.calls("nvmlDeviceGetMigDeviceHandleByIndex") == 3, "one of them was a hole"
    assert nvml.call("nvmlDeviceGetName", "MIG-1-2") != nvml.call("nvmlDeviceGetName", 1)
    assert code_of(nvml, "nvmlDeviceGetName", "MIG-1-1") == 6


@scenario()
def test_mig_devices_come_and_go_while_the_agent_runs(standin: NvmlStandin) -> None:
    plain, cut = full_gpus(2), full_gpus(2, cut=[1])
    standin.load(plain)
    run = NvmlReaders(StandinHost(), nvml_sources())
    run.tick()
    run.tick()
    mode = run.of(1, "mig")
    assert mode["railscope_gpu_mig_devices", ("GPU-1",)] == 0
    standin.load(cut)
    assert standin.event(1, MIG_CHANGE) == 1
    for _ in range(4):
        run.tick()
    assert not run.problems
    for uuid in ("MIG-1-0", "MIG-1-2"):
        answer = cut[f"nvml.nvmlDeviceGetMemoryInfo({uuid})"]
        assert of_mig(run, 1, uuid)["railscope_mig_memory_used_bytes"] == answer["used"]
        sm = cut[f"nvml.nvmlGpmMetricsGet({uuid},2)"][1]
        activity = of_mig(run, 1, uuid, "gpu_activity")
        assert activity["railscope_mig_sm_activity_ratio"] == sm * 10_000
    held = standin.count("samples")
    standin.load(plain)
    for _ in range(4):
        run.tick()
    assert not run.problems
    assert run.of(1, "mig") == mode
    assert held - standin.count("samples") == 4, "two samples of each device were given back"
    assert standin.count("event_sets") == 1


@scenario()
def test_a_mig_device_that_is_gone_is_known_no_more(standin: NvmlStandin) -> None:
    calls = full_gpus(1, cut=[0])
    standin.load(calls)
    now = [0]
    nvml = Nvml(lambda: now[0])
    nvml.call("nvmlDeviceGetMigDevices", 0)
    assert code_of(nvml, "nvmlGpmMetricsGet", "MIG-0-2", 2) == 27
    (first, _) = calls["nvml.nvmlDeviceGetMigDevices(0)"]
    standin.load(calls | {"nvml.nvmlDeviceGetMigDevices(0)": [first]})
    assert code_of(nvml, "nvmlDeviceGetName", "MIG-0-2") == 2, "its handle is stale"
    assert code_of(nvml, "nvmlDeviceGetName", "MIG-0-2") == 6, "and was thrown away"
    assert standin.count("samples") == 0
    assert [answer["uuid"] for answer in nvml.call("nvmlDeviceGetMigDevices", 0)] == ["MIG-0-0"]


@scenario()
def test_samples_are_compared_when_they_are_far_enough_apart(standin: NvmlStandin) -> None:
    standin.load(full_gpus(1))
    now = [0]
    nvml = Nvml(lambda: now[0])
    assert code_of(nvml, "nvmlGpmMetricsGet", 0, 2) == 27
    now[0] += SHORTEST_NS - 1
    assert code_of(nvml, "nvmlGpmMetricsGet", 0, 2) == 27
    assert standin.calls("nvmlGpmSampleGet") == 1, "the first sample waits for its second"
    now[0] += 1
    assert nvml.call("nvmlGpmMetricsGet", 0, 2)[1] == [0]
    now[0] += LONGEST_NS + 1
    assert code_of(nvml, "nvmlGpmMetricsGet", 0, 2) == 27
    now[0] += SHORTEST_NS
    assert nvml.call("nvmlGpmMetricsGet", 0, 2)[1] == [0]
    assert standin.count("samples") == 2


def use(pid: int, stamp: int) -> dict[str, int]:
    """A sample of a process."""
    uses = {"smUtil": 40, "memUtil": 7, "encUtil": 1, "decUtil": 2}
    return {"pid": pid, "timeStamp": stamp, **uses}


@scenario()
def test_the_use_of_processes_goes_on_from_the_last_sample(standin: NvmlStandin) -> None:
    key = "nvml.nvmlDeviceGetProcessUtilization(0)"
    calls = full_gpus(1) | {key: [use(1, 100), use(2, 101)]}
    standin.load(calls)
    nvml = Nvml()

    def used() -> list[int]:
        return [sample["pid"] for sample in nvml.call("nvmlDeviceGetProcessUtilization", 0)]

    assert used() == [1, 2]
    assert code_of(nvml, "nvmlDeviceGetProcessUtilization", 0) == 6, "there is none since"
    standin.load(calls | {key: [use(1, 100), use(2, 101), use(3, 102), use(1, 103)]})
    assert used() == [3, 1]
    standin.load(calls | {key: []})
    assert used() == [], "nvidia-ml-py raises SUCCESS for this"
    standin.load(calls | {key: [use(2, 103), use(4, 104)]})
    assert used() == [4]


@scenario()
def test_samples_go_on_from_the_last_and_follow_a_clock_that_was_set_back(
    standin: NvmlStandin,
) -> None:
    key, nvml = "nvml.nvmlDeviceGetSamples(0,1)", Nvml()
    base = {"nvml.nvmlDeviceGetCount()": 1}
    standin.load(base | {key: [[1000, 10], [2000, 20]]})
    assert nvml.call("nvmlDeviceGetSamples", 0, 1) == [[1000, 10], [2000, 20]]
    standin.load(base | {key: [[1000, 10], [2000, 20], [3000, 30]]})
    assert nvml.call("nvmlDeviceGetSamples", 0, 1) == [[3000, 30]]
    standin.load(base | {key: [[500, 40]]})
    assert nvml.call("nvmlDeviceGetSamples", 0, 1) == []
    assert nvml.call("nvmlDeviceGetSamples", 0, 1) == [[500, 40]]


@scenario()
def test_the_memory_of_a_virtual_gpu_has_64_bits(standin: NvmlStandin) -> None:
    """The field of nvidia-ml-py has 32 bits."""
    calls = full_gpus(1, virtual=[0])
    (vgpu,) = calls["nvml.nvmlDeviceGetActiveVgpus(0)"]
    calls[f"nvml.nvmlVgpuInstanceGetFbUsage({vgpu})"] = 40 << 30
    standin.load(calls)
    nvml = Nvml()
    assert nvml.call("nvmlVgpuInstanceGetFbUsage", vgpu) == 40 << 30
    assert code_of(nvml, "nvmlVgpuInstanceGetFbUsage", 5) == 3


@scenario()
def test_events_are_numbered_and_reported_again(standin: NvmlStandin) -> None:
    standin.load(full_gpus(2) | {"nvml.nvmlEventSetWait()": []})
    nvml = Nvml()
    assert nvml.call("nvmlEventSetWait") == []
    standin.event(1, XID, 94, 3, 0)
    standin.event(0, 0x1)
    first = [1, 1, XID, 94, 3, 0]
    second = [2, 0, 0x1, 0, NO_INSTANCE, NO_INSTANCE]
    assert nvml.call("nvmlEventSetWait") == nvml.call("nvmlEventSetWait") == [first, second]
    for number in range(MAX_QUEUED_EVENTS):
        standin.event(0, XID, number)
    numbers = [number for number, *_ in nvml.call("nvmlEventSetWait")]
    assert numbers == list(range(3, MAX_QUEUED_EVENTS + 3))


@scenario()
def test_a_gpu_is_followed_for_the_events_it_has(standin: NvmlStandin) -> None:
    calls = full_gpus(2) | {"nvml.nvmlEventSetWait()": []}
    supported = "nvml.nvmlDeviceGetSupportedEventTypes"
    standin.load(calls | {f"{supported}(0)": XID, f"{supported}(1)": error(3)})
    nvml = Nvml()
    assert nvml.call("nvmlEventSetWait") == []
    received = [standin.event(gpu, kind) for gpu, kind in ((0, XID), (0, MIG_CHANGE), (1, XID))]
    assert received == [1, 0, 0]
    nvml.close()
    standin.load(calls | {f"{supported}(0)": 0, f"{supported}(1)": error(3)})
    assert code_of(nvml, "nvmlEventSetWait") == 3
    assert standin.count("event_sets") == 0
