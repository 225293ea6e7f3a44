"""Shares of GPUs in job lists: exact fractions on placeholders, or a reason."""

from __future__ import annotations

import json
from collections import defaultdict
from fractions import Fraction

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st

from railscope.claim_terms import GPU_CAPACITY
from railscope.cli import root as railscope
from railscope.timestamps import FOREVER_NS
from railscope_collector.jobs.bad_lines import JobListError
from railscope_collector.jobs.gpu_models import GpuModels
from railscope_collector.jobs.imported_lists import newest_lists
from railscope_collector.jobs.job_list import ListedJob, UnnamedGpus
from railscope_collector.jobs.job_list_reader import detect_format, read_alibaba, read_jobs
from railscope_collector.jobs.job_metering import meter_jobs
from railscope_collector.jobs.kubernetes import read_kubernetes
from railscope_collector.jobs.placeholder_gpus import number_placeholders
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.tiling import SlotState
from railscope_collector.metering.units import Tiling
from railscope_collector.tables import metadata

S = 1_000_000_000


def pod(number: int, limits: dict[str, object], **annotations: str) -> dict[str, object]:
    """A pod of an hour on node n1."""
    return {
        "kind": "Pod",
        "metadata": {
            "uid": str(number),
            "name": f"p{number}",
            "namespace": "team",
            "annotations": annotations,
        },
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": {
            "phase": "Succeeded",
            "startTime": "2026-10-01T00:00:00Z",
            "containerStatuses": [
                {"state": {"terminated": {"finishedAt": "2026-10-01T01:00:00Z"}}}
            ],
        },
    }


def node(**labels: str) -> dict[str, object]:
    named = {f"nvidia.com/gpu.{name.replace('_', '-')}": text for name, text in labels.items()}
    return {"kind": "Node", "metadata": {"uid": "n", "name": "n1", "labels": named}}


def parts(*objects: dict[str, object]) -> list[tuple[int, Fraction, str]]:
    found = read_kubernetes(json.dumps({"kind": "List", "items": objects}))
    return [(part.gpus, part.share, part.model) for job in found.jobs for part in job.unplaced]


@pytest.mark.parametrize(
    ("limits", "share"),
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "30"}, Fraction(3, 10)),
        ({"nvidia.com/gpu": "2", "nvidia.com/gpucores": 25}, Fraction(1, 4)),
        ({"alibabacloud.com/gpu-milli": "810"}, Fraction(81, 100)),
        ({"aliyun.com/gpu-core.percentage": "15"}, Fraction(3, 20)),
        ({"tencent.com/vcuda-core": "50"}, Fraction(1, 2)),
        ({"tke.cloud.tencent.com/qgpu-core": "1"}, Fraction(1, 100)),
        ({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory-percentage": 50}, Fraction(1, 2)),
    ],
)
def test_share_resources_of_kubernetes_are_shares(limits, share):
    gpus = int(limits.get("nvidia.com/gpu", 1))
    assert parts(pod(1, limits)) == [(gpus, share, "")]


def test_gpushare_memory_is_a_share_of_what_the_scheduler_wrote():
    annotated = pod(
        1, {"aliyun.com/gpu-mem": "4"}, ALIYUN_COM_GPU_MEM_POD="4", ALIYUN_COM_GPU_MEM_DEV="15"
    )
    assert parts(annotated) == [(1, Fraction(4, 15), "")]


def test_fractions_of_kai_are_held_and_the_gpu_reserved_for_them_is_not():
    of_memory, of_time = (
        pod(1, {}, **{"gpu-memory": "20000"}),
        pod(2, {}, **{"gpu-fraction": "0.5"}),
    )
    reservation = pod(3, {"nvidia.com/gpu": 1}, **{"run.ai/reserve_for_gpu_index": "GPU-1"})
    reservation["metadata"]["namespace"] = "kai-resource-reservation"
    for each in (of_memory, of_time, reservation):
        each["metadata"]["labels"] = {"runai-gpu-group": "g1", "app": "x"}
    found = parts(node(memory="81559"), of_memory, of_time, reservation)
    assert found == [(1, Fraction(20000, 81559), ""), (1, Fraction(1, 2), "")]


def test_a_mig_device_of_hami_is_no_whole_gpu():
    job = pod(1, {}, **{"hami.io/vgpu-devices-allocated": "GPU-1[0-3],NVIDIA,18000,14:;"})
    (listed,) = read_kubernetes(json.dumps(job)).jobs
    assert [(part.gpus, part.reason) for part in listed.unplaced] == [
        (0, "GPU-1[0-3] is a part of a GPU, of unknown size")
    ]


def test_memory_needs_the_memory_of_the_node():
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8192}
    (unknown,) = read_kubernetes(json.dumps(pod(1, limits))).jobs
    (part,) = unknown.unplaced
    assert part.gpus == 0
    assert "the memory of the device is unknown" in part.reason
    known = parts(node(memory="40960", product="A100-SXM"), pod(1, limits))
    assert known == [(1, Fraction(1, 5), "A100-SXM")]


def test_time_slices_are_shares_of_the_replicas_of_the_node():
    shared = node(replicas="4", product="A100-SXM-SHARED", sharing_strategy="time-slicing")
    assert parts(shared, pod(1, {"nvidia.com/gpu.shared": 3})) == [(3, Fraction(1, 4), "A100-SXM")]
    assert parts(shared, pod(1, {"nvidia.com/gpu": 1})) == [(1, Fraction(1, 4), "A100-SXM")]
    (unknown,) = read_kubernetes(json.dumps(pod(1, {"nvidia.com/gpu.shared": 3}))).jobs
    assert "of unknown size" in unknown.unplaced[0].reason


@pytest.mark.parametrize(
    "labels",
    [
        {"nvidia.com/gpu.product": "A100-SXM4-40GB-MIG-1g.5gb", "nvidia.com/gpu.memory": "4864"},
        {"nvidia.com/gpu.product": "A100-MIG-1g.5gb-SHARED", "nvidia.com/gpu.replicas": "4"},
        {"cloud.google.com/gke-gpu-partition-size": "1g.5gb"},
    ],
)
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/gpu.shared"])
def test_a_mig_device_that_is_offered_as_a_gpu_is_no_whole_gpu(labels, resource):
    partitioned = {"kind": "Node", "metadata": {"uid": "n", "name": "n1", "labels": labels}}
    jobs = (partitioned, pod(1, {resource: 2}), pod(2, {resource: 1, "nvidia.com/gpumem": 2432}))
    found = read_kubernetes(json.dumps({"kind": "List", "items": jobs}))
    assert [(part.gpus, part.reason) for job in found.jobs for part in job.unplaced] == [
        (0, f"{resource}=2 is a part of a GPU, of unknown size"),
        (0, found.jobs[1].unplaced[0].reason),
    ]
    assert "the memory of the device is unknown" in found.jobs[1].unplaced[0].reason


def test_shards_of_slurm_are_shares_where_their_number_is_known():
    header = "JobIDRaw|User|Account|State|Start|End|NodeList|AllocTRES"
    text = f"{header}\n7|u|a|COMPLETED|100|200|n1|gres/shard=20\n"
    (unknown,) = read_jobs(text).jobs
    assert [(part.gpus, part.reason) for part in unknown.unplaced] == [
        (0, "gres/shard=20 is a part of a GPU, of unknown size")
    ]
    (known,) = read_jobs(text, shards_per_gpu=16).jobs
    assert [(part.gpus, part.share) for part in known.unplaced] == [(1, 1), (1, Fraction(1, 4))]


# Alibaba -----------------------------------------------------------------------------------------

TRACE = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-0,6000,12288,1,500,,LS,Succeeded,0,7200,3600.0
pod-1,6000,12288,1,250,V100M16|V100M32,LS,Running,0,,3600.0
pod-2,88000,327680,8,1000,G2,BE,Succeeded,0,10800,7200.0
pod-3,4000,16384,0,0,,LS,Succeeded,0,10,1
pod-4,4000,16384,1,1000,,LS,Pending,0,,
pod-5,4000,16384,1,1000,,LS,Failed,0,,5
pod-6,4000,16384,1,2000,,LS,Succeeded,0,9,5
"""


def test_the_trace_of_alibaba_is_read():
    assert detect_format(TRACE) == "alibaba"
    found = read_jobs(TRACE, strict=False)
    assert [
        (job.id, job.tenant, job.unplaced[0].share, job.unplaced[0].model) for job in found.jobs
    ] == [("pod-0", "LS", Fraction(1, 2), ""), ("pod-2", "BE", 1, "G2")]
    assert found.running == ("pod-1",)
    assert (found.without_gpus, found.never_started) == (1, 1)
    assert [str(one) for one in found.rejected] == [
        "line 7: deletion_time: expected a time, as pod_phase is Failed",
        "line 8: gpu_milli: '2000': expected a whole number below 1001",
    ]
    with pytest.raises(JobListError, match="line 1: deletion_time: missing in the header"):
        read_alibaba(TRACE.replace("deletion_time", "gone"))


def test_the_trace_of_alibaba_is_in_the_ledger(tmp_path):
    file, url = tmp_path / "openb.csv", f"sqlite:///{tmp_path / 'ledger.sqlite'}"
    file.write_text(TRACE)
    arguments = ("--ledger", url, "--period", "1970-01", "--as-of", "1970-01-01T03:00:00Z")
    found = CliRunner().invoke(
        railscope,
        ["bill", "import-jobs", str(file), *arguments, "--placeholder-gpus", "--treat-as-observed"],
    )
    assert found.exit_code == 0, found.output
    ledger = Ledger.open(url, metadata)
    held = {
        of.tenant: Fraction(quantity, GPU_CAPACITY * 3600 * S)
        for of, quantity in ledger.totals(0, FOREVER_NS).items()
        if of.tiling is Tiling.COMPUTE and of.state is SlotState.OBSERVED
    }
    assert held == {"LS": Fraction(1, 2) + Fraction(1, 4) * 2, "BE": 8}
    (one,) = newest_lists(ledger.database)
    assert (one.source, one.rejected_count) == ("alibaba", 2)


# Properties --------------------------------------------------------------------------------------

one_job = st.tuples(
    st.integers(0, 50),
    st.integers(1, 50),
    st.sampled_from("abc"),
    st.integers(1, 3),
    st.sampled_from(
        [Fraction(1), Fraction(1, 2), Fraction(1, 3), Fraction(3, 8), Fraction(1, 840)]
    ),
)


@given(st.lists(one_job, max_size=12))
def test_shares_are_exact_and_never_overlap(found):
    jobs = [
        ListedJob(
            start * S,
            str(number),
            tenant,
            "u",
            (start + seconds) * S,
            unplaced=(UnnamedGpus("n1", gpus, "counted", "", share),),
        )
        for number, (start, seconds, tenant, gpus, share) in enumerate(found)
    ]
    placed = number_placeholders(jobs, "s", GpuModels()).jobs
    assert not any(job.unplaced for job in placed)
    expected: dict[str, Fraction] = defaultdict(Fraction)
    for _, seconds, tenant, gpus, share in found:
        expected[tenant] += seconds * S * gpus * share
    metered = meter_jobs(placed)
    assert metered.tenants == expected
    assert metered.balances
    assert metered.overlaps == ()
    for job in placed:
        assert len(set(job.gpus)) == len(job.gpus), "each part is on a GPU of its own"
