"""A driver and GPUs that appear and vanish under the real nvidia-ml-py, and hung calls."""

from __future__ import annotations

import threading

import pytest
from support.full_gpus import full_gpus, nvml_sources
from support.reading import ORIGIN, readings
from support.standin import (
    DRIVER,
    LIBRARY,
    NvmlReaders,
    NvmlStandin,
    StandinHost,
    build,
    code_of,
    scenario,
)

from railscope.capture import Json
from railscope.reading import Absent
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.nvml import Nvml
from railscope_agent.sampling.source_reader import SourceReader

SM = "railscope_gpu_sm_activity_ratio"
XID, RECOVERY_ACTION = 0x8, 0x8000
SHORT = 1.0


def quiet_gpus(count: int) -> dict[str, Json]:
    """Return calls of GPUs with every feature and without events."""
    use = {"gpu": 0, "memory": 0}  # so that sums over time do not change
    memory = {"total": 4 << 30, "reserved": 1 << 30, "free": 3 << 30, "used": 0}
    return (
        full_gpus(count)
        | {f"nvml.nvmlDeviceGetUtilizationRates({gpu})": use for gpu in range(count)}
        | {f"nvml.nvmlDeviceGetMemoryInfo({gpu})": memory for gpu in range(count)}
        | {"nvml.nvmlEventSetWait()": []}
    )


def events(nvml: Nvml) -> list[list[int]]:
    """Number, GPU and data of the latest events."""
    return [[number, gpu, data] for number, gpu, _, data, *_ in nvml.call("nvmlEventSetWait")]


def start_sources(standin: NvmlStandin, count: int = 2) -> NvmlReaders:
    """All sources on so many GPUs, after two reads."""
    standin.load(quiet_gpus(count))
    run = NvmlReaders(StandinHost(), nvml_sources())
    run.tick()
    run.tick()
    assert not run.problems
    assert isinstance(run.of(0, "gpu_activity")[SM, ("GPU-0",)], int)
    return run


@scenario()
def test_a_lost_gpu_comes_back_with_a_new_handle_while_the_other_goes_on(
    standin: NvmlStandin,
) -> None:
    run = start_sources(standin)
    nvml = run.host.nvml
    healthy = {stream: (run.of(0, stream), run.of(1, stream)) for stream in ("gpu", "gpu_activity")}
    assert standin.event(1, XID, 48) == 1
    standin.fail(1, 15)
    run.tick()
    for stream, (first, _) in healthy.items():
        assert run.of(0, stream) == first
        assert set(run.of(1, stream).values()) == {Absent.GONE}
    run.tick()
    assert standin.event(0, XID, 31) == 1, "the set was created again without the lost GPU"
    run.tick()
    assert events(nvml) == [[1, 1, 48], [2, 0, 31]]
    handles = standin.count("handles")
    standin.fail(1, 0)
    run.tick(5)
    run.tick()
    assert standin.count("handles") > handles
    for stream, values in healthy.items():
        assert (run.of(0, stream), run.of(1, stream)) == values
    assert standin.event(1, RECOVERY_ACTION, 1) == 1, "the GPU that is back is registered again"
    assert events(nvml) == [[1, 1, 48], [2, 0, 31], [3, 1, 1]]
    assert (standin.count("samples"), standin.count("event_sets")) == (4, 1)


@scenario()
def test_the_last_events_of_a_gpu_are_received(standin: NvmlStandin) -> None:
    """An Xid, and then the bus is dead: both wait in the set at the next call."""
    standin.load(quiet_gpus(2))
    nvml = Nvml()
    assert events(nvml) == []
    standin.event(1, XID, 79)
    standin.fail(1, 15)
    assert events(nvml) == [[1, 1, 79]]
    standin.event(0, XID, 45)
    assert events(nvml) == [[1, 1, 79]], "the new set has no earlier events"
    standin.event(0, XID, 45)
    assert events(nvml) == [[1, 1, 79], [2, 0, 45]]


@scenario()
def test_a_driver_that_was_reloaded_is_started_again(standin: NvmlStandin) -> None:
    run = start_sources(standin)
    streams = [stream for stream in run.outcomes if stream != "gpu_event"]
    healthy = {stream: run.of(1, stream) for stream in streams}
    standin.event(0, XID, 43)
    run.tick()
    standin.fail(DRIVER, 9)
    run.tick()
    for gpu in range(2):
        assert set(run.of(gpu).values()) == {Absent.ERROR}
    held = [standin.count(what) for what in ("attached", "samples", "event_sets")]
    assert held == [0, 0, 0], "what belonged to the old driver was given back"
    run.tick(5)
    starts = standin.count("starts")
    run.tick()
    assert any("Driver Not Loaded" in problem for problem in run.problems)
    assert standin.count("starts") - starts <= len(run.outcomes), "each source reads once per tick"
    standin.fail(DRIVER, 0)
    run.tick()
    run.tick()
    assert not run.problems
    assert {stream: run.of(1, stream) for stream in streams} == healthy
    standin.event(1, XID, 44)
    assert events(run.host.nvml) == [[1, 0, 43], [2, 1, 44]]
    assert standin.count("attached") == 1


@pytest.mark.thorough
@scenario(version="590.48.01")
def test_an_updated_library_is_loaded_without_a_restart(standin: NvmlStandin) -> None:
    """The driver was updated first: its library differs from the one in this process."""
    calls = quiet_gpus(1)
    version = "nvml.nvmlSystemGetDriverVersion()"
    standin.write(calls | {version: "590.48.01"})
    nvml = Nvml()
    assert nvml.call("nvmlSystemGetDriverVersion") == "590.48.01"
    import pynvml  # noqa: PLC0415 - it must not be loaded before the library is there

    library = pynvml.nvmlLib
    table = standin.write(calls | {version: "595.80"})
    library.standin_fail(DRIVER, 9)
    assert code_of(nvml, "nvmlDeviceGetCount") == 9
    library.standin_load(str(table).encode())
    library.standin_fail(DRIVER, 0)
    assert code_of(nvml, "nvmlDeviceGetCount") == 18
    assert pynvml.nvmlLib is None
    assert code_of(nvml, "nvmlDeviceGetCount") == 18, "the old library is still the installed one"
    build(standin.directory / "update", version="595.80").replace(standin.directory / LIBRARY)
    assert nvml.call("nvmlDeviceGetCount") == 1
    assert nvml.call("nvmlSystemGetDriverVersion") == "595.80"
    assert nvml.call("nvmlDeviceGetUUID", 0) == "GPU-0"


@scenario()
def test_all_is_given_back_at_the_end(standin: NvmlStandin) -> None:
    run = start_sources(standin)
    assert (standin.count("samples"), standin.count("event_sets")) == (4, 1)
    nvml = run.host.nvml
    nvml.close()
    held = [standin.count(what) for what in ("attached", "samples", "event_sets")]
    assert held == [0, 0, 0]
    nvml.close()
    run.tick()
    run.tick()
    assert isinstance(run.of(1, "gpu_activity")[SM, ("GPU-1",)], int), "it may be used again"


@scenario()
def test_the_agents_own_host_reads_every_source(standin: NvmlStandin) -> None:
    calls = full_gpus(2, virtual=[1])
    standin.load(calls)
    host = LiveHost()
    readers = [SourceReader(source, host, ORIGIN) for source in nvml_sources()]
    pause = threading.Event()
    while True:
        outcomes = {reader.source.name: reader.run() for reader in readers}
        assert {outcome.problem for outcome in outcomes.values()} == {""}
        sm = readings(outcomes["gpu_activity"].frame)[SM, ("GPU-1",)]
        if sm is not Absent.NOT_DUE:
            break
        pause.wait(0.01)
    assert sm == calls["nvml.nvmlGpmMetricsGet(1,2)"][1] * 10_000
    on_the_bus = {"gpu_device", "gpu_pcie"}
    assert all(outcome.frame for name, outcome in outcomes.items() if name not in on_the_bus)
    vgpus = readings(outcomes["gpu_sharing"].frame)["railscope_gpu_vgpus", ("GPU-1",)]
    assert vgpus == 1
    host.close()
    assert (standin.count("samples"), standin.count("attached")) == (0, 0)
