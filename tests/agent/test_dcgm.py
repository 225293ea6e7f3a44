"""The names of dcgm-exporter in the agent's metrics: values, labels, instances, absent values."""

from __future__ import annotations

import shutil
import subprocess

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support import metric_samples
from support.gpus import GIBIBYTE, add_gpus
from support.h100 import LINKS, MEBIBYTE, add_answers, fields, gpm, h100
from support.machine import DENIED, FakeHost
from support.mig import cut
from support.reading import read_once
from support.sampling import run_sampler

from railscope.exposition import TextFormat
from railscope.frame import Frame
from railscope.http_server import HttpServer
from railscope_agent.endpoint.dcgm import DcgmExposition
from railscope_agent.endpoint.dcgm_table import DCGM_METRICS
from railscope_agent.endpoint.metrics_endpoint import MetricsEndpoint
from railscope_agent.host import NvmlError
from railscope_agent.sampling.source import Source
from railscope_agent.sources.nvidia.activity import GpuActivitySource
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.nvidia.mig_devices import MigSource
from railscope_agent.sources.nvidia.nvlink import NvLinkSource
from railscope_agent.streams.kernel_log import KernelLogStream

OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
LABELS = {
    "gpu": "0",
    "UUID": "GPU-0",
    "pci_bus_id": "00000000:01:00.0",
    "device": "nvidia0",
    "modelName": "NVIDIA H100 80GB HBM3",
    "Hostname": "node-1",
    "DCGM_FI_DRIVER_VERSION": "590.48.01",
}
FALLEN = "NVRM: Xid (PCI:0000:01:00): 79, pid=1234, name=python, GPU has fallen off the bus."


def sources() -> list[Source]:
    nvml: list[Source] = [
        GpuSource.load(),
        GpuSource.health(),
        GpuSource.settings(),
        GpuActivitySource(),
        MigSource(),
    ]
    return [*nvml, NvLinkSource.traffic(), KernelLogStream()]


def frames(host: FakeHost) -> list[Frame]:
    """Return the frames of one read of all sources, without empty ones."""
    outcomes = [read_once(source, host) for source in sources()]
    assert [outcome.problem for outcome in outcomes if outcome.problem] == []
    return [outcome.frame for outcome in outcomes if outcome.frame]


def page(host: FakeHost, text_format: TextFormat = TextFormat.PROMETHEUS) -> str:
    return DcgmExposition("node-1").render(frames(host), text_format)


def samples(text: str) -> dict[metric_samples.Sample, float]:
    """Return the samples of a text; the parser appends _total to every counter, as in OpenMetrics."""
    found = metric_samples.samples(text).items()
    return {(name.removesuffix("_total"), labels): value for (name, labels), value in found}


def of_gpu(text: str, gpu: str = "0") -> dict[str, float]:
    """The samples of a GPU as a whole, by name and without DCGM_FI_."""
    found = {label: value for label, value in samples(text).items() if ("gpu", gpu) in label[1]}
    whole = {label: v for label, v in found.items() if "GPU_I_ID" not in dict(label[1])}
    return {name.removeprefix("DCGM_FI_"): value for (name, _), value in whole.items()}


def of_instances(text: str, name: str) -> dict[tuple[str, str], float]:
    """The samples of GPU instances by profile and id."""
    found = {
        (dict(labels).get("GPU_I_PROFILE", ""), dict(labels).get("GPU_I_ID", "")): value
        for (found, labels), value in samples(text).items()
        if found == name and dict(labels)["gpu"] == "0"
    }
    return {instance: value for instance, value in found.items() if any(instance)}


def test_an_h100_under_the_names_of_dcgm_exporter():
    assert of_gpu(page(h100())) == {
        "DEV_SM_CLOCK": 1905, "DEV_MEM_CLOCK": 2619, "DEV_VIDEO_CLOCK": 1500,
        "DEV_MAX_SM_CLOCK": 1980, "DEV_MAX_MEM_CLOCK": 1980, "DEV_MAX_VIDEO_CLOCK": 1980,
        "DEV_CLOCKS_EVENT_REASONS": 0x84, "DEV_CLOCK_THROTTLE_REASONS": 0x84,
        "DEV_GPU_TEMP": 61, "DEV_MEMORY_TEMP": 70, "DEV_GPU_TEMP_LIMIT": 26,
        "DEV_POWER_USAGE": 512.345, "DEV_POWER_USAGE_INSTANT": 600.5,
        "DEV_TOTAL_ENERGY_CONSUMPTION": 2**60 + 1, "DEV_ENFORCED_POWER_LIMIT": 700,
        "DEV_POWER_MGMT_LIMIT": 400, "DEV_POWER_MGMT_LIMIT_MIN": 200,
        "DEV_POWER_MGMT_LIMIT_MAX": 700, "DEV_POWER_MGMT_LIMIT_DEF": 650, "DEV_PSTATE": 2,
        "DEV_GPU_UTIL": 40, "DEV_MEM_COPY_UTIL": 11, "DEV_ENC_UTIL": 7, "DEV_DEC_UTIL": 8,
        "DEV_POWER_VIOLATION": 74e9, "DEV_THERMAL_VIOLATION": 75e9,
        "DEV_SYNC_BOOST_VIOLATION": 76e9, "DEV_BOARD_LIMIT_VIOLATION": 77e9,
        "DEV_LOW_UTIL_VIOLATION": 78e9, "DEV_RELIABILITY_VIOLATION": 79e9,
        "DEV_TOTAL_APP_CLOCKS_VIOLATION": 80e9, "DEV_TOTAL_BASE_CLOCKS_VIOLATION": 81e9,
        "DEV_FB_TOTAL": 81920, "DEV_FB_FREE": 60416, "DEV_FB_USED": 20480, "DEV_FB_RESERVED": 1024,
        "DEV_FB_USED_PERCENT": 20 / 79, "DEV_BAR1_TOTAL": 131072, "DEV_BAR1_USED": 0.5,
        "DEV_BAR1_FREE": 131071.5,
        "DEV_XID_ERRORS": 0, "DEV_ECC_CURRENT": 1, "DEV_ECC_PENDING": 1,
        "DEV_ECC_SBE_VOL_TOTAL": 3, "DEV_ECC_DBE_VOL_TOTAL": 4,
        "DEV_ECC_SBE_AGG_TOTAL": 5, "DEV_ECC_DBE_AGG_TOTAL": 6, "DEV_THRESHOLD_SRM": 0,
        "DEV_CORRECTABLE_REMAPPED_ROWS": 1, "DEV_UNCORRECTABLE_REMAPPED_ROWS": 2,
        "DEV_ROW_REMAP_PENDING": 1, "DEV_ROW_REMAP_FAILURE": 0, "DEV_GPU_RECOVERY_ACTION": 1,
        "DEV_MIG_MODE": 0, "DEV_PERSISTENCE_MODE": 1,
        "DEV_PCIE_REPLAY_COUNTER": 94, "DEV_PCIE_LINK_GEN": 5, "DEV_PCIE_LINK_WIDTH": 16,
        "DEV_PCIE_MAX_LINK_GEN": 5, "DEV_PCIE_MAX_LINK_WIDTH": 16,
        "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": sum(range(LINKS)),
        "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": LINKS,
        "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": 2 * LINKS, "DEV_NVLINK_BANDWIDTH_TOTAL": 7000,
        "PROF_GR_ENGINE_ACTIVE": 0.995, "PROF_SM_ACTIVE": 0.8, "PROF_SM_OCCUPANCY": 0.25,
        "PROF_PIPE_TENSOR_ACTIVE": 0.5, "PROF_DRAM_ACTIVE": 0.1225, "PROF_PIPE_FP64_ACTIVE": 0.11,
        "PROF_PIPE_FP32_ACTIVE": 0.12, "PROF_PIPE_FP16_ACTIVE": 0.13, "PROF_PIPE_INT_ACTIVE": 0.04,
        "PROF_PIPE_TENSOR_IMMA_ACTIVE": 0.09, "PROF_PIPE_TENSOR_HMMA_ACTIVE": 0.07,
        "PROF_PIPE_TENSOR_DFMA_ACTIVE": 0.06,
        "PROF_PCIE_TX_BYTES": 20 * MEBIBYTE, "PROF_PCIE_RX_BYTES": 21 * MEBIBYTE,
        "PROF_NVLINK_TX_BYTES": 1000 * MEBIBYTE, "PROF_NVLINK_RX_BYTES": 6000 * MEBIBYTE,
    }  # fmt: skip


def test_large_counts_stay_exact_and_shares_are_not_rounded():
    lines = page(h100()).splitlines()
    values = {
        line.partition("{")[0]: line.rpartition(" ")[2] for line in lines if 'gpu="0"' in line
    }
    assert values["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"] == str(2**60 + 1)
    assert values["DCGM_FI_DEV_FB_USED"] == "20480"
    assert values["DCGM_FI_DEV_POWER_USAGE"] == "512.345"
    assert values["DCGM_FI_DEV_FB_USED_PERCENT"] == repr(20 / 79)


def test_every_sample_has_the_labels_of_its_gpu():
    host = h100()
    add_answers(host, 1, MinorNumber=5)
    second = {"gpu": "1", "UUID": "GPU-1", "pci_bus_id": "00000000:02:00.0", "device": "nvidia5"}
    wanted = {"0": LABELS, "1": LABELS | second}
    found = {dict(labels)["gpu"]: dict(labels) for _, labels in samples(page(host))}
    assert found == wanted
    assert all(dict(labels) == wanted[dict(labels)["gpu"]] for _, labels in samples(page(host)))


def test_a_new_driver_is_reported_at_once():
    host, exposition = h100(), DcgmExposition("node-1")
    before = exposition.render(frames(host), TextFormat.PROMETHEUS)
    host.calls["nvml.nvmlSystemGetDriverVersion()"] = "595.10"
    after = exposition.render(frames(host), TextFormat.PROMETHEUS)
    assert after == before.replace("590.48.01", "595.10")


# MIG -------------------------------------------------------------------------------------------


def test_a_partitioned_gpu_exports_each_instance_once_and_the_rest_as_a_whole():
    host = h100()
    first, second = cut(host, 0, ["3g.40gb", "1g.10gb"])
    devices = host.calls["nvml.nvmlDeviceGetMigDevices(0)"]
    halves = [("MIG-half-a", "2c.3g.40gb", 0), ("MIG-half-b", "1c.3g.40gb", 1)]
    devices[:1] = [
        {"uuid": uuid, "index": compute, "gpu": 1, "compute": compute}
        for uuid, _, compute in halves
    ]
    whole = {key: answer for key, answer in host.calls.items() if first in key}
    for uuid, profile, _ in halves:
        host.calls |= {key.replace(first, uuid): answer for key, answer in whole.items()}
        host.calls[f"nvml.nvmlDeviceGetName({uuid})"] = f"NVIDIA H100 80GB HBM3 MIG {profile}"
    gpm(host, second, {11: 33})
    text = page(host)
    large, small = ("3g.40gb", "1"), ("1g.10gb", "2")
    assert of_instances(text, "DCGM_FI_DEV_FB_USED") == {large: 3 * 1024, small: 1024}
    assert of_instances(text, "DCGM_FI_DEV_FB_USED_PERCENT") == {large: 0.1, small: 0.1}
    assert of_instances(text, "DCGM_FI_PROF_SM_ACTIVE") == {large: 0.6, small: 0.2}
    assert of_instances(text, "DCGM_FI_PROF_PIPE_FP64_ACTIVE") == {small: 0.33}
    assert of_instances(text, "DCGM_FI_DEV_POWER_USAGE") == {}
    whole_gpu = of_gpu(text)
    per_instance = {row.name.removeprefix("DCGM_FI_") for row in DCGM_METRICS if row.mig}
    assert not per_instance & set(whole_gpu), "a sum would count them twice"
    assert whole_gpu["DEV_POWER_USAGE"] == 512.345
    assert whole_gpu["DEV_MIG_MODE"] == 1
    assert of_gpu(text, "1")["DEV_FB_USED"] == 20480
    instance = next(dict(labels) for _, labels in samples(text) if ("GPU_I_ID", "2") in labels)
    assert instance == LABELS | {"GPU_I_PROFILE": "1g.10gb", "GPU_I_ID": "2"}


# What is absent --------------------------------------------------------------------------------


def test_unreadable_values_are_omitted_and_never_zero():
    host = h100()
    whole = of_gpu(page(host))
    add_answers(
        host, 0, PowerUsage=NvmlError(999), MemoryInfo={"total": GIBIBYTE, "used": 9, "free": 1}
    )
    fields(host, 0, {82: NvmlError(4), "161:3": [999, 0]})
    missing = {"DEV_POWER_USAGE", "DEV_FB_USED", "DEV_FB_RESERVED", "DEV_FB_USED_PERCENT"}
    host.calls |= {key: NvmlError(3) for key in host.calls if key.startswith("nvml.nvmlGpm")}
    without = of_gpu(page(host))
    gpm_names = {name for name in whole if name.startswith("PROF_")} | {
        "DEV_NVLINK_BANDWIDTH_TOTAL"
    }
    assert missing <= set(whole) - set(without)
    assert "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL" not in without, "one of its links is not known"
    assert not gpm_names & set(without)
    assert 0 not in {without[name] for name in without if whole[name] != 0}


def test_a_link_that_is_not_there_takes_no_part_in_the_sum():
    host = h100()
    fields(host, 0, {f"{field}:17": [3, 0] for field in (161, 162, 163)})
    found = of_gpu(page(host))
    assert found["DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"] == LINKS - 1
    assert found["DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"] == sum(range(17))


def test_an_a100_exports_flits_and_thresholds_and_no_profiling():
    host = FakeHost()
    add_gpus(host, 1)
    fields(
        host,
        0,
        {91: 12, **{32 + link: 1 for link in range(6)}, **{96 + link: 2 for link in range(6)}},
    )
    fields(host, 0, {39 + link: 5 for link in range(6)} | {102 + link: 6 for link in range(6)})
    for number in range(4):
        host.calls[f"nvml.nvmlDeviceGetTemperatureThreshold(0,{number})"] = 90 + number
    host.calls |= {key: NvmlError(3) for key in host.calls if key.startswith("nvml.nvmlGpm")}
    found = of_gpu(page(host))
    assert found["DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"] == 6 * 1 + 6 * 2
    assert found["DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL"] == 6 * 5 + 6 * 6
    limits = (
        "DEV_SHUTDOWN_TEMP",
        "DEV_SLOWDOWN_TEMP",
        "DEV_MEM_MAX_OP_TEMP",
        "DEV_GPU_MAX_OP_TEMP",
    )
    assert [found[name] for name in limits] == [90, 91, 92, 93]
    assert [name for name in found if name.startswith("PROF_")] == []


def test_the_last_xid_is_that_of_the_gpu_and_zero_where_there_was_none():
    host = h100()
    host.log.waiting = [f"3,1,1000,-;{FALLEN.replace('79', '48')}", f"3,2,2000,-;{FALLEN}"]
    text = page(host)
    assert (of_gpu(text)["DEV_XID_ERRORS"], of_gpu(text, "1")["DEV_XID_ERRORS"]) == (79, 0)


def test_without_a_readable_log_the_absence_of_xids_is_not_exported():
    host = h100()
    host.log.closed = DENIED
    assert "DEV_XID_ERRORS" not in of_gpu(page(host))


def test_a_machine_without_gpus_has_an_empty_page():
    assert page(FakeHost()) == ""
    assert page(FakeHost(), TextFormat.OPENMETRICS) == "# EOF\n"


# The page --------------------------------------------------------------------------------------


def test_openmetrics_keeps_the_names():
    """A counter must end in _total there; one that does not has no type rather than another name."""
    host = h100()
    plain, openmetrics = page(host), page(host, TextFormat.OPENMETRICS)
    assert samples(openmetrics) == samples(plain)
    assert openmetrics.replace(" unknown\n", " counter\n") == plain + "# EOF\n"


def test_promtool_finds_nothing_but_names_that_are_not_ours_to_choose():
    if not shutil.which("promtool"):
        pytest.skip("promtool is missing: install the Debian package prometheus")
    outcome = subprocess.run(
        ["promtool", "check", "metrics"],
        input=page(h100()),
        capture_output=True,
        text=True,
        check=False,
    )
    about_names = ("counter metrics should have", "should not include type", "not 'camelCase'")
    found = (outcome.stdout + outcome.stderr).splitlines()
    assert found
    assert [line for line in found if not any(text in line for text in about_names)] == []


async def scraped(
    page_: MetricsEndpoint, accept: str = "", token: str = ""
) -> tuple[int, str, str]:
    server = HttpServer(page_.respond)
    _, port = await server.start("127.0.0.1:0", None)
    headers = {"Accept": accept or "*/*"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        url = f"http://127.0.0.1:{port}/metrics/dcgm"
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
            return answer.status, answer.headers["Content-Type"], await answer.text()
    finally:
        await server.close()


async def test_the_page_is_served_in_both_forms_behind_the_token_while_it_is_fresh() -> None:
    host, token = h100(), "let-me-in"
    async with run_sampler(host, [GpuSource.load(), NvLinkSource.traffic()]) as run:
        statuses = run.sampler.statuses.values()
    page_ = MetricsEndpoint("node-1", lambda: statuses, lambda: host.clock.now().boot_ns, token)
    assert (await scraped(page_))[0] == 401
    status, content_type, text = await scraped(page_, token=token)
    assert (status, content_type) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert of_gpu(text)["DEV_POWER_USAGE"] == 512.345
    _, content_type, text = await scraped(page_, OPENMETRICS, token)
    assert content_type.startswith("application/openmetrics-text")
    assert of_gpu(text)["DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"] == LINKS
    host.clock.advance(6)  # too long ago for what is read every second, not for what is every ten
    assert set(of_gpu((await scraped(page_, token=token))[2])) == {
        "DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    }


def test_each_name_comes_with_its_help_and_type():
    families = list(text_string_to_metric_families(page(h100())))
    described = {family.name: (family.type, family.documentation) for family in families}
    declared = {row.name: (str(row.kind), row.sentence) for row in DCGM_METRICS}
    assert len(described) > 70
    assert described.items() <= declared.items()
