"""The document about the names of dcgm-exporter: mapped names, unmapped names, and reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from railscope_agent.endpoint.dcgm_table import (
    DCGM_METRICS,
    EACH,
    DcgmFormula,
    DcgmMetric,
    DcgmUnit,
    FormulaTerm,
)

Table = Callable[[Iterable[str], Iterable[Iterable[str]]], list[str]]

INTRODUCTION = """\
`GET /metrics/dcgm` on the agent serves the readings of `/metrics` under the names, labels and units of NVIDIA
dcgm-exporter, so that existing dashboards and rules keep working. `railscope agent once --format dcgm` prints the same
text. Neither DCGM nor its host engine is needed, and no reading is taken twice.

```yaml
scrape_configs:
  - job_name: dcgm
    metrics_path: /metrics/dcgm
    static_configs:
      - targets: [gpu-server-1:9469]
```

- A metric without a fresh reading is omitted.
- The endpoint has no parameters: it always serves all of these names, and a query is answered with status 400. Drop
  metrics with `metric_relabel_configs` of Prometheus.
- Whole numbers are exact. Nothing is rounded, whereas dcgm-exporter truncates MiB to whole numbers.
- A counter resets when the NVML counter does: at a driver reload or a GPU reset, unless it covers the lifetime of
  the board.
- OpenMetrics requires that counters end in `_total`. To keep the names, counters have the type `unknown` there; the
  Prometheus text format has the types below.

## Labels
"""

LABELS = (
    ("gpu", "NVML index", ""),
    ("UUID", "UUID of the GPU", "MIG instances have the UUID of the whole GPU."),
    ("pci_bus_id", "PCI address as NVML writes it", "Missing in older releases of dcgm-exporter."),
    (
        "device",
        "`nvidiaN` by minor number: the file below `/dev`",
        "dcgm-exporter uses its own index; the two can differ.",
    ),
    ("modelName", "name of the model", ""),
    ("GPU_I_PROFILE", "profile of the GPU instance", "Only for MIG instances."),
    ("GPU_I_ID", "id of the GPU instance", "Only for MIG instances."),
    ("Hostname", "name of the node", "The setting `node`, or else the host name."),
    ("DCGM_FI_DRIVER_VERSION", "version of the driver", ""),
    (
        "pod, namespace, container, hpc_job",
        "absent",
        "Join with `railscope_gpu_holder_info` by `UUID`, or by `gpu` and `Hostname`.",
    ),
    (
        "err_code, err_msg",
        "absent",
        "The value of `DCGM_FI_DEV_XID_ERRORS` is the code; a label would create a series per code.",
    ),
)

MIG = """\
For metrics with a column for MIG instances, a partitioned GPU has one sample per GPU instance and none of its own, so a
sum over all samples counts nothing twice. Readings that exist for the whole GPU only (power, temperature, clocks,
links) appear once, without the labels of an instance; dcgm-exporter repeats them for each instance.

## Names that are served
"""

MISSING = """\
## Names that are not served

Names that a dashboard for dcgm-exporter may use and that this endpoint does not serve.
"""

NOT_SERVED = (
    ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "Only the driver in a guest with a virtual GPU reports its licence, and the agent does not read it."),
    ("DCGM_FI_DEV_PCIE_TX_THROUGHPUT, DCGM_FI_DEV_PCIE_RX_THROUGHPUT", "Each reading blocks the driver for 20 ms, and DCGM 4.6 removed them. Use `DCGM_FI_PROF_PCIE_TX_BYTES` and `DCGM_FI_PROF_PCIE_RX_BYTES`, or `rate()` of `railscope_gpu_pcie_transmitted_bytes_total` and `railscope_gpu_pcie_received_bytes_total`."),
    ("DCGM_FI_PROF_* before Hopper", "NVML reports activity of SMs and pipes from Hopper on (GPM). For earlier GPUs only DCGM's profiling module does; it is closed source and excludes other profilers."),
    ("DCGM_FI_DEV_COUNT", "Not a property of a GPU: use `count by (Hostname) (DCGM_FI_DEV_GPU_TEMP)`."),
    ("DCGM_FI_DEV_APP_SM_CLOCK, DCGM_FI_DEV_APP_MEM_CLOCK", "NVML deprecates application clocks; newer GPUs have none."),
    ("DCGM_FI_DEV_COMPUTE_MODE", "DCGM and NVML number the modes differently; `railscope_gpu_compute_mode` names them."),
    ("DCGM_FI_DEV_ECC_*_L1, L2, DEV, REG, TEX, SHM, CBU, SRM", "Use `railscope_gpu_ecc_location_errors_total`, which has the location as a label."),
    ("DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_*", "Use `railscope_gpu_row_remap_banks`, which has the number of spare rows as a label."),
    ("DCGM_FI_DEV_NVLINK_*_L0 to L17", "Use `railscope_nvlink_errors_total` and `railscope_nvlink_transmitted_bytes_total`, which have the link as a label."),
    ("DCGM_FI_DEV_NVLINK_COUNT_*", "Use `railscope_nvlink_errors_total`, `railscope_nvlink_recoveries_total` and `railscope_nvlink_transmitted_packets_total`, from Blackwell on."),
    ("DCGM_FI_PROF_NVLINK_L0_TX_BYTES to L17", "Use `rate()` of `railscope_nvlink_transmitted_bytes_total` and `railscope_nvlink_received_bytes_total`."),
    ("DCGM_FI_PROF_NVDEC*_ACTIVE, DCGM_FI_PROF_NVJPG*_ACTIVE, DCGM_FI_PROF_NVOFA*_ACTIVE", "Use `railscope_gpu_engine_activity_ratio`, which has the engine as a label."),
    ("DCGM_FI_PROF_*_CYCLES_*_TOTAL", "Use `railscope_gpu_sm_cycles_total`, which has the kind of cycle as a label."),
    ("DCGM_FI_PROF_C2C_*, DCGM_FI_DEV_C2C_*", "Use `railscope_gpu_c2c_transmit_bytes_per_second`, `railscope_gpu_c2c_links` and similar metrics."),
    ("DCGM_FI_DEV_FABRIC_MANAGER_STATUS, DCGM_FI_DEV_FABRIC_MANAGER_ERROR_CODE", "The codes are DCGM's own; use `railscope_gpu_fabric_state` and `railscope_gpu_fabric_status_code`."),
    ("DCGM_EXP_XID_ERRORS_COUNT, DCGM_EXP_XID_ERRORS_TOTAL", "Use `increase()` of `railscope_gpu_xid_errors_total`."),
    ("DCGM_EXP_CLOCK_EVENTS_COUNT, DCGM_EXP_CLOCK_EVENTS_TOTAL", "Use `rate()` of `railscope_gpu_throttle_seconds_total`: the driver counts the time, so no event is missed between two samples."),
    ("DCGM_EXP_GPU_HEALTH_STATUS, DCGM_FI_DEV_DIAG_*", "Results of DCGM's own checks; `railscope_gpu_health` is the state that Railscope derives, with its reasons."),
    ("DCGM_EXP_P2P_STATUS", "The agent does not read which GPUs can reach each other."),
    ("DCGM_FI_DEV_NVSWITCH_*", "The agent does not read NVSwitches; their errors in the kernel log are `railscope_nvswitch_sxid_errors_total`."),
    ("DCGM_FI_DEV_CPU_*", "Processors are read from the kernel: use `railscope_cpu_seconds_total`."),
)  # fmt: skip


def lines(made: str, table: Table) -> list[str]:
    """Return the document; `made` is its generator note, `table` draws a table from its head and rows."""
    labels = ((", ".join(f"`{n}`" for n in names.split(", ")), *rest) for names, *rest in LABELS)
    head = ("name", "type", "meaning", "metric", "metric of a MIG instance", "conversion", "remark")
    missing = ((f"`{names}`".replace(", ", "`, `"), reason) for names, reason in NOT_SERVED)
    return [
        "# dcgm-exporter metric names",
        "",
        made,
        "",
        *INTRODUCTION.splitlines(),
        "",
        *table(("label", "value", "remark"), labels),
        *MIG.splitlines(),
        "",
        *table(head, map(_row, DCGM_METRICS)),
        *MISSING.splitlines(),
        "",
        *table(("name", "reason and replacement"), missing),
    ]


def _row(row: DcgmMetric) -> tuple[str, ...]:
    return (
        f"`{row.name}`",
        str(row.kind),
        row.sentence,
        ", else ".join(map(_formula, row.gpu)),
        _formula(row.mig) if row.mig else "",
        _conversion(row.measure),
        row.remark,
    )


def _conversion(measure: DcgmUnit) -> str:
    numerator, denominator = measure.per_base_unit.as_integer_ratio()
    if denominator != 1:
        return f"divided by {denominator}"
    return f"times {numerator}" if numerator != 1 else "none"


def _formula(formula: DcgmFormula) -> str:
    dividend = _sum(formula.terms)
    return f"{dividend} / ({_sum(formula.denominator)})" if formula.denominator else dividend


def _sum(terms: Iterable[FormulaTerm]) -> str:
    first, *following = terms
    rest = (f" {'-' if term.weight < 0 else '+'} {_term(term)}" for term in following)
    return _term(first) + "".join(rest)


def _term(term: FormulaTerm) -> str:
    about = term.metric.about.labels
    parts = dict(zip(about[len(about) - len(term.part) :], term.part, strict=True))
    labels = ",".join(f'{label}="{part}"' for label, part in parts.items() if part != EACH)
    over = [label for label, part in parts.items() if part == EACH]
    text = f"`{term.metric.name}{{{labels}}}`" if labels else f"`{term.metric.name}`"
    if over:
        text = f"sum of {text} over `{over[0]}`"
    if term.weights:
        weights = ", ".join(f"{part} {weight}" for part, weight in term.weights.items())
        text = f"{text} ({weights})"
    return text
