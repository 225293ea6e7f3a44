"""GPUDirect Storage, as nvidia-fs prints it with and without I/O statistics; GPUDirect modules."""

from __future__ import annotations

from hypothesis import given, strategies as st
from support.machine import DENIED, FakeHost
from support.reading import ORIGIN, numbers, read_once, readings

from railscope.reading import Absent
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.gpudirect import STATS, GpuDirectSource, parse_stats

MIB = 1 << 20
UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
GPU = (f"GPU-{UUID}",)
HEAD = """GDS Version: 1.11.1.6
NVFS statistics(ver: 4.0)
NVFS Driver(version: 2.22.3)
Mellanox PeerDirect Supported: True
IO stats: {io}, peer IO stats: {peer}
Logging level: info

Active Shadow-Buffer (MiB): 128
Active Process: 2
"""
COUNTED = """Batches\t\t\t\t: n=7 ok=5 err=2 Avg-Submit-Latency(usec)=3
Reads\t\t\t\t: n=1200 ok=1199 err=1 readMiB=4800 io_state_err=4
Reads\t\t\t\t: Bandwidth(MiB/s)=5200 Avg-Latency(usec)=700
Sparse Reads\t\t        : n=0 io=0 holes=0 pages=0
Writes\t\t\t\t: n=10 ok=9 err=1 writeMiB=40 io_state_err=6 pg-cache=7 pg-cache-fail=8 pg-cache-eio=9
Writes\t\t\t\t: Bandwidth(MiB/s)=900 Avg-Latency(usec)=1100
"""
UNCOUNTED = """Reads\t\t\t\t: err=1 io_state_err=4
Sparse Reads\t\t        : n=0 io=0 holes=0 pages=0
Writes\t\t\t\t: err=1 io_state_err=6 pg-cache=7 pg-cache-fail=8 pg-cache-eio=9
"""
TAIL = """Mmap\t\t\t\t: n=4 ok=3 err=1 munmap=2
Bar1-map\t\t\t: n=4 ok=4 err=0 free=2 callbacks=0 active=2 delay-frees=0
Error\t\t\t\t: cpu-gpu-pages=1 sg-ext=2 dma-map=3 dma-ref=4
Ops\t\t\t\t: Read=5 Write=6 BatchIO=7
"""
LINE = f"GPU 0000:3d:00.0  uuid:{UUID} : Registered_MiB=64 Cache_MiB=1 max_pinned_MiB=96 "
ON = HEAD.format(io="Enabled", peer="Enabled") + COUNTED + TAIL + LINE + "cross_root_port(%)=25\n"
OFF = HEAD.format(io="Disabled", peer="Disabled") + UNCOUNTED + TAIL + LINE + "\n"
ALWAYS = {
    ("railscope_gds_failed_operations_total", ("read",)): 1,
    ("railscope_gds_failed_operations_total", ("write",)): 1,
    ("railscope_gds_failed_operations_total", ("mmap",)): 1,
    ("railscope_gds_failed_operations_total", ("bar1_map",)): 0,
    ("railscope_gds_state_errors_total", ("read",)): 4,
    ("railscope_gds_state_errors_total", ("write",)): 6,
    ("railscope_gds_page_cache_writes_total", ()): 7,
    ("railscope_gds_page_cache_write_failures_total", ()): 17,
    ("railscope_gds_mapping_errors_total", ("cpu_gpu_pages",)): 1,
    ("railscope_gds_mapping_errors_total", ("sg_ext",)): 2,
    ("railscope_gds_mapping_errors_total", ("dma_map",)): 3,
    ("railscope_gds_mapping_errors_total", ("dma_ref",)): 4,
    ("railscope_gds_operations_in_flight", ("read",)): 5,
    ("railscope_gds_operations_in_flight", ("write",)): 6,
    ("railscope_gds_operations_in_flight", ("batch",)): 7,
    ("railscope_gds_processes", ()): 2,
    ("railscope_gds_shadow_buffer_bytes", ()): 128 * MIB,
    ("railscope_gds_bar1_mappings", ()): 2,
    ("railscope_gds_gpu_registered_bytes", GPU): 64 * MIB,
    ("railscope_gds_gpu_bounce_buffer_bytes", GPU): MIB,
    ("railscope_gds_gpu_max_pinned_bytes", GPU): 96 * MIB,
}
SWITCHED = {
    ("railscope_gds_operations_total", ("batch",)): 7,
    ("railscope_gds_operations_total", ("read",)): 1200,
    ("railscope_gds_operations_total", ("write",)): 10,
    ("railscope_gds_completed_operations_total", ("batch",)): 5,
    ("railscope_gds_completed_operations_total", ("read",)): 1199,
    ("railscope_gds_completed_operations_total", ("write",)): 9,
    ("railscope_gds_failed_operations_total", ("batch",)): 2,
    ("railscope_gds_read_bytes_total", ()): 4800 * MIB,
    ("railscope_gds_write_bytes_total", ()): 40 * MIB,
}


def host_with(stats: object) -> FakeHost:
    host = FakeHost()
    host.files[STATS] = stats
    host.files["/proc/driver/nvidia-fs/version"] = "version: 2.22.3\n"
    return host


def storage(findings: tuple[ProbeFinding, ...]) -> ProbeFinding:
    return next(finding for finding in findings if finding.subject == "GPUDirect Storage")


def test_everything_the_module_counts() -> None:
    outcome = read_once(GpuDirectSource(), host_with(ON))
    cross = {("railscope_gds_gpu_cross_root_port_ratio", GPU): 0.25}
    assert numbers(outcome.frame) == ALWAYS | SWITCHED | cross
    assert storage(outcome.findings).verdict is ProbeVerdict.SUPPORTED
    assert not storage(outcome.findings).remedy


def test_without_statistics_requests_are_unsupported_with_a_remedy() -> None:
    outcome = read_once(GpuDirectSource(), host_with(OFF))
    assert numbers(outcome.frame) == ALWAYS
    found = readings(outcome.frame)
    assert {found[key] for key in SWITCHED} == {Absent.UNSUPPORTED}
    finding = storage(outcome.findings)
    assert "rw_stats_enabled" in finding.remedy
    assert outcome.missing_count == 0


def test_statistics_that_are_switched_on_meanwhile_come_out() -> None:
    host = host_with(OFF)
    reader = SourceReader(GpuDirectSource(), host, ORIGIN)
    reader.run()
    host.files[STATS] = ON
    assert numbers(reader.run().frame) == ALWAYS | SWITCHED


def test_a_gpu_that_is_used_for_the_first_time_is_there_at_the_next_read() -> None:
    host = host_with(ON.replace(LINE, ""))
    reader = SourceReader(GpuDirectSource(), host, ORIGIN)
    reader.run()
    host.files[STATS] = ON
    reader.run()
    found = numbers(reader.run().frame)
    assert found["railscope_gds_gpu_registered_bytes", GPU] == 64 * MIB


def test_a_gpu_that_is_reset_takes_its_line_along() -> None:
    host = host_with(ON)
    reader = SourceReader(GpuDirectSource(), host, ORIGIN)
    reader.run()
    host.files[STATS] = ON.replace(LINE, "")
    assert readings(reader.run().frame)["railscope_gds_gpu_registered_bytes", GPU] is Absent.GONE


def test_no_module_and_no_right() -> None:
    assert storage(read_once(GpuDirectSource(), FakeHost()).findings).verdict is ProbeVerdict.ABSENT
    outcome = read_once(GpuDirectSource(), host_with(DENIED))
    assert storage(outcome.findings).verdict is ProbeVerdict.DENIED


def test_modules_for_rdma_are_a_fact_and_a_missing_one_is_not_a_fault() -> None:
    host = FakeHost()
    host.files["/proc/driver/nvidia/gpus/0000:3d:00.0/information"] = "Model: NVIDIA H200\n"
    outcome = read_once(GpuDirectSource(), host)
    name = "railscope_gpudirect_module_loaded"
    assert numbers(outcome.frame) == {
        (name, (module,)): 0 for module in ("nvidia_peermem", "nv_peer_mem", "nvidia_fs")
    }
    (rdma,) = [finding for finding in outcome.findings if finding.subject == "GPUDirect RDMA"]
    assert rdma.verdict is ProbeVerdict.SUPPORTED
    assert "DMA-BUF" in rdma.detail
    host.files["/sys/module/nvidia_peermem/version"] = "570.86.15\n"
    host.files["/sys/kernel/mm/memory_peers/nv_mem/version"] = "1.3\n"
    found = read_once(GpuDirectSource(), host)
    assert numbers(found.frame) == {
        (name, ("nvidia_peermem",)): 1,
        (name, ("nv_peer_mem",)): 1,
        (name, ("nvidia_fs",)): 0,
    }
    assert found.frame is not None
    facts = {entity.key: entity.facts for _, entity, _ in found.frame.readings()}
    assert facts["nvidia_peermem",] == {"version": "570.86.15"}


@given(st.sampled_from([ON, OFF]), st.floats(0, 1))
def test_a_file_cut_short_makes_nothing_up(whole: str, share: float) -> None:
    everything = parse_stats(whole.encode())
    found = parse_stats(whole.encode()[: round(len(whole) * share)])
    present = {key: value for key, value in found.items() if not isinstance(value, Absent)}
    assert present.items() <= everything.items()


@given(
    st.lists(st.sampled_from([*ON.splitlines(), "GPU x", "Reads: n= ok=-1", "=", ":", "New: a=1"]))
)
def test_lines_in_any_order_are_not_a_fault(lines: list[str]) -> None:
    assert read_once(GpuDirectSource(), host_with("\n".join(lines) + "\n")).problem == ""
