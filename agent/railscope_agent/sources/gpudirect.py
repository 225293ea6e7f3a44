"""GPUDirect Storage, as counted by its kernel module, and the modules that serve GPUDirect.

Format: NVIDIA/gds-nvidia-fs src/nvfs-stat.c. Requests and bytes are counted only while the module's
parameter rw_stats_enabled is set; then "Reads" and "Writes" occupy two lines each. Writing to the
file clears it: it is only ever read.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator

from railscope.catalog import declare, entities, storage as c
from railscope.frame import Column, Entity
from railscope.reading import Absent, Reading
from railscope_agent.host import Host
from railscope_agent.sampling import fact_readers, probe_result
from railscope_agent.sampling.source import SYSTEM
from railscope_agent.sources.scan_source import Found, ScanSource, parse_natural, whole_lines

ROOT = "/proc/driver/nvidia-fs"
STATS = f"{ROOT}/stats"
_PEERS = "/sys/kernel/mm/memory_peers"
_MODULES = ("nvidia_peermem", "nv_peer_mem", "nvidia_fs")
_GPU = re.compile(r"GPU (?P<address>\S+)\s+uuid:(?P<uuid>[0-9a-f-]{36})\s*:(?P<rest>.*)")
_PAIR = re.compile(r"(\S+)=(\S+)")
_SWITCHED = re.compile(r"IO stats: (Enabled|Disabled)")
_REMEDY = (
    "to count requests and bytes: echo 1 > /sys/module/nvidia_fs/parameters/rw_stats_enabled"
    " (costs some speed)"
)
_COUNTED = {"Batches": "batch", "Reads": "read", "Writes": "write"}
_OPERATIONS = _COUNTED | {"Mmap": "mmap", "Bar1-map": "bar1_map"}
_OF_OPERATION: dict[str, declare.Metric] = {
    "n": c.GDS_OPERATIONS,
    "ok": c.GDS_COMPLETED,
    "io_state_err": c.GDS_STATE_FAILED,
}
_NODE = Entity(entities.NODE)
_FIELDS: dict[Hashable, Column] = {
    ("Reads", "readMiB"): (c.GDS_READ, _NODE),
    ("Writes", "writeMiB"): (c.GDS_WRITTEN, _NODE),
    ("Writes", "pg-cache"): (c.GDS_PAGE_CACHE, _NODE),
    ("Writes", "pg-cache-failed"): (c.GDS_PAGE_CACHE_FAILED, _NODE),
    ("Bar1-map", "active"): (c.GDS_MAPPINGS, _NODE),
    ("Active Process", ""): (c.GDS_PROCESSES, _NODE),
    ("Active Shadow-Buffer (MiB)", ""): (c.GDS_SHADOW, _NODE),
    **{
        (line, field): (metric, Entity(entities.GDS_OPERATION, (operation,)))
        for line, operation in _COUNTED.items()
        for field, metric in _OF_OPERATION.items()
    },
    **{
        (line, "err"): (c.GDS_FAILED, Entity(entities.GDS_OPERATION, (operation,)))
        for line, operation in _OPERATIONS.items()
    },
    **{
        ("Error", error): (c.GDS_ERRORS, Entity(entities.GDS_ERROR, (error.replace("-", "_"),)))
        for error in ("cpu-gpu-pages", "sg-ext", "dma-map", "dma-ref")
    },
    **{
        ("Ops", field): (c.GDS_IN_FLIGHT, Entity(entities.GDS_OPERATION, (operation,)))
        for field, operation in {"Read": "read", "Write": "write", "BatchIO": "batch"}.items()
    },
}
_OF_GPU: dict[str, declare.Metric] = {
    "Registered_MiB": c.GDS_REGISTERED,
    "Cache_MiB": c.GDS_CACHED,
    "max_pinned_MiB": c.GDS_MAX_PINNED,
    "cross_root_port(%)": c.GDS_CROSS_ROOT,
}
_SWITCHED_OFF: tuple[tuple[str, str], ...] = (
    *((line, field) for line in _COUNTED for field in ("n", "ok")),
    ("Batches", "err"),
    ("Reads", "readMiB"),
    ("Writes", "writeMiB"),
)
"""Fields that the module counts only while rw_stats_enabled is set."""


def parse_stats(content: bytes) -> dict[Hashable, Reading]:
    """Readings by line and field; those of a GPU by its UUID, as NVML writes it, and field.

    Repeated lines describe the same object. Disabled counters are unsupported.
    """
    readings: dict[Hashable, Reading] = {}
    for line in whole_lines(content):
        if match := _GPU.match(line):
            name, rest = f"GPU-{match['uuid']}", match["rest"]
        else:
            head, _, rest = line.partition(":")
            name = head.strip()
        pairs = _PAIR.findall(rest)
        readings |= {(name, field): parse_natural(value) for field, value in pairs}
        if not pairs and name.startswith("Active ") and ":" in line:
            readings[name, ""] = parse_natural(rest.strip())
    parts = [readings.get(("Writes", part)) for part in ("pg-cache-fail", "pg-cache-eio")]
    numbers = [part for part in parts if isinstance(part, int)]
    # A sum of one part would look like a decrease when the other one returns.
    if len(numbers) == len(parts):
        readings["Writes", "pg-cache-failed"] = sum(numbers)
    if not counts_requests(content):
        readings |= dict.fromkeys(_SWITCHED_OFF, Absent.UNSUPPORTED)
    return readings


def counts_requests(content: bytes) -> bool:
    """True if the module currently counts requests and bytes."""
    match = _SWITCHED.search(content.decode(errors="replace"))
    return match is not None and match[1] == "Enabled"


class GpuDirectSource(ScanSource):
    """Requests, bytes, errors and pinned memory of GPUDirect Storage; modules for GPUDirect."""

    name = "gpudirect"
    lane = SYSTEM
    period_seconds = 10.0

    def readings(self, host: Host) -> Iterator[Found | probe_result.ProbeFinding]:
        """Yield the loaded modules, and the fields of the file."""
        loaded = _loaded_modules(host)
        yield from _uncounted(host)
        # On a node without GPUs a missing module is not reported.
        if loaded or fact_readers.list_names(host, "/proc/driver/nvidia/gpus"):
            for module in _MODULES:
                about = fact_readers.nonempty_facts(version=loaded.get(module, ""))
                entity = Entity(entities.GPUDIRECT_MODULE, (module,), about)
                yield c.GPUDIRECT_LOADED, entity, int(module in loaded)
        yield from self.keyed(host, STATS, parse_stats, _column)


def _column(key: Hashable) -> Column | None:
    line, field = key if isinstance(key, tuple) else ("", "")
    if line.startswith("GPU-") and field in _OF_GPU:
        return _OF_GPU[field], Entity(entities.GPU, (line,))
    return _FIELDS.get(key)


def _loaded_modules(host: Host) -> dict[str, str]:
    """Versions of the loaded modules; empty for a module that does not report one."""
    modules = {
        module: fact_readers.read_text(host, f"/sys/module/{module}/version")
        for module in _MODULES
        if fact_readers.list_names(host, f"/sys/module/{module}")
    }
    if version := fact_readers.read_text(host, f"{_PEERS}/nv_mem/version"):
        modules.setdefault("nv_peer_mem", version)
    return modules


def _uncounted(host: Host) -> Iterator[probe_result.ProbeFinding]:
    """Yield a finding if the module is loaded and its requests cannot be read."""
    subject = "GPUDirect Storage"
    try:
        if not counts_requests(host.read(STATS)):
            detail = "requests and bytes are not counted"
            yield probe_result.ProbeFinding.absent(subject, detail, _REMEDY)
    except FileNotFoundError:
        return
    except OSError as error:
        yield probe_result.ProbeFinding.failed(subject, error, "run the agent as root", STATS)
