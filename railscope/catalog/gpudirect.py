"""Metrics of GPUDirect Storage, and of the prerequisites for NIC access to GPU memory."""

from fractions import Fraction

from railscope.catalog.declare import EntityKind, Kind, Metric, Rollup, Unit
from railscope.catalog.entities import GDS_ERROR, GDS_OPERATION, GPU, GPUDIRECT_MODULE, NODE

_FILE = "/proc/driver/nvidia-fs/stats"
_MEBIBYTE = Fraction(1 << 20)
_RESETS = "Counts from when the nvidia-fs module was loaded or somebody wrote to the file."
_SWITCH = "where the module counts I/O (rw_stats_enabled)"


def _counter(
    stem: str, help_: str, origin: str, about: EntityKind = NODE, unit: Unit = Unit.NONE
) -> Metric:
    name = f"railscope_gds_{stem}_{unit}_total" if unit else f"railscope_gds_{stem}_total"
    return Metric(
        name, Kind.COUNTER, about,
        unit=unit, scale=_MEBIBYTE if unit is Unit.BYTES else Fraction(1),
        rollups=(Rollup.SUM,), resets=_RESETS, help=help_, origin=f"{_FILE} {origin}",
    )  # fmt: skip


def _gauge(stem: str, help_: str, origin: str, about: EntityKind = NODE) -> Metric:
    sized = stem.endswith("_bytes")
    return Metric(
        f"railscope_gds_{stem}", Kind.GAUGE, about,
        unit=Unit.BYTES if sized else Unit.NONE, scale=_MEBIBYTE if sized else Fraction(1),
        rollups=(Rollup.SUM,), help=help_, origin=f"{_FILE} {origin}",
    )  # fmt: skip


MODULE_INFO = Metric(
    "railscope_gpudirect_module_info",
    Kind.INFO,
    GPUDIRECT_MODULE,
    help="A kernel module that serves GPUDirect. RDMA needs none where DMA-BUF is used.",
    origin="/sys/module/*/version, /sys/kernel/mm/memory_peers/*/version",
)
MODULE_LOADED = Metric(
    "railscope_gpudirect_module_loaded",
    Kind.GAUGE,
    GPUDIRECT_MODULE,
    help="Whether the module is loaded (1) or not (0).",
    origin="/sys/module, /sys/kernel/mm/memory_peers",
)
OPERATIONS = _counter(
    "operations", f"Requests made, {_SWITCH}.", "Batches, Reads, Writes: n", GDS_OPERATION
)
COMPLETED = _counter(
    "completed_operations", f"Requests that succeeded, {_SWITCH}.",
    "Batches, Reads, Writes: ok", GDS_OPERATION,
)  # fmt: skip
FAILED = _counter(
    "failed_operations", "Requests that failed.",
    "Batches, Reads, Writes, Mmap, Bar1-map: err", GDS_OPERATION,
)  # fmt: skip
STATE_FAILED = _counter(
    "state_errors", "Requests that met a buffer in a wrong state.",
    "Reads, Writes: io_state_err", GDS_OPERATION,
)  # fmt: skip
READ = _counter(
    "read", f"Bytes read into GPU memory, {_SWITCH}.", "Reads: readMiB", unit=Unit.BYTES
)
WRITTEN = _counter(
    "write", f"Bytes written from GPU memory, {_SWITCH}.", "Writes: writeMiB", unit=Unit.BYTES
)
PAGE_CACHE = _counter(
    "page_cache_writes", "Writes that met pages of the page cache.", "Writes: pg-cache"
)
PAGE_CACHE_FAILED = _counter(
    "page_cache_write_failures", "Writes whose pages in the page cache could not be dropped.",
    "Writes: pg-cache-fail + pg-cache-eio",
)  # fmt: skip
ERRORS = _counter(
    "mapping", "Failures on the way from a buffer to a transfer, by kind.",
    "Error: cpu-gpu-pages, sg-ext, dma-map, dma-ref", GDS_ERROR, Unit.ERRORS,
)  # fmt: skip
IN_FLIGHT = _gauge(
    "operations_in_flight", "Requests under way.", "Ops: Read, Write, BatchIO", GDS_OPERATION
)
PROCESSES = _gauge("processes", "Processes that use GPUDirect Storage.", "Active Process")
SHADOW = _gauge(
    "shadow_buffer_bytes", "Memory of shadow buffers in use.", "Active Shadow-Buffer (MiB)"
)
MAPPINGS = _gauge("bar1_mappings", "Mappings of GPU memory in use.", "Bar1-map: active")
REGISTERED = _gauge(
    "gpu_registered_bytes", "Memory of the GPU that is pinned for transfers.",
    "GPU: Registered_MiB", GPU,
)  # fmt: skip
CACHED = _gauge(
    "gpu_bounce_buffer_bytes", "Memory of the GPU that serves as bounce buffers.",
    "GPU: Cache_MiB", GPU,
)  # fmt: skip
MAX_PINNED = _gauge(
    "gpu_max_pinned_bytes", "Most memory of the GPU that was ever pinned at a time.",
    "GPU: max_pinned_MiB", GPU,
)  # fmt: skip
CROSS_ROOT = Metric(
    "railscope_gds_gpu_cross_root_port_ratio",
    Kind.GAUGE,
    GPU,
    unit=Unit.RATIO,
    scale=Fraction(1, 100),
    rollups=(Rollup.MAX,),
    help="Share of the GPU's transfers that left its PCIe root port, where peer statistics are on.",
    origin=f"{_FILE} GPU: cross_root_port(%)",
)
