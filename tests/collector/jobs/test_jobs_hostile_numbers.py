"""Numbers of thousands of digits in job lists, labels, annotations and settings of nodes."""

from __future__ import annotations

import pytest

from railscope.kubernetes_pods import pod_entry
from railscope.pod_shares import requests_of
from railscope_collector.jobs.job_list_reader import read_jobs
from railscope_collector.jobs.kubernetes import NodeGpuLabels

NINES = "9" * 5000
HEADER = "name,num_gpu,gpu_milli,pod_phase,deletion_time,scheduled_time\n"
COLUMNS = {"num_gpu": 1, "gpu_milli": 2, "deletion_time": 4, "scheduled_time": 5}


@pytest.mark.parametrize("column", COLUMNS)
def test_a_line_of_alibabas_list_is_reported_and_the_others_are_imported(column: str) -> None:
    bad = ["bad", "1", "500", "Succeeded", "100", "5"]
    bad[COLUMNS[column]] = NINES
    text = f"{HEADER}a,1,500,Succeeded,100,5\n{','.join(bad)}\nb,1,500,Succeeded,100,5\n"
    found = read_jobs(text, "alibaba", strict=False)
    assert [job.id for job in found.jobs] == ["a", "b"]
    (wrong,) = found.rejected
    assert f"line 3: {column}: '999" in str(wrong)
    assert len(str(wrong)) < 200


def test_a_label_of_a_node_that_is_not_a_number_is_unknown() -> None:
    labels = {"nvidia.com/gpu.memory": NINES, "nvidia.com/gpu.replicas": NINES}
    assert NodeGpuLabels.parse(labels) == NodeGpuLabels()


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        ("hami.io/vgpu-devices-allocated", f"GPU-1,NVIDIA,{NINES},10:;"),
        ("hami.io/vgpu-devices-allocated", f"GPU-1,NVIDIA,1,{NINES}:;"),
        ("hami.io/vgpu-devices-allocated", "GPU-1,NVIDIA"),
    ],
    ids=range(3),
)
def test_an_annotation_that_is_not_a_share_is_a_problem_of_its_pod(
    annotation: str, text: str
) -> None:
    pod = pod_entry(("ns", "pod"), "", {annotation: text}, [("c", {})])
    found = requests_of(pod, lambda _place: 80_000)
    assert not found.shares
    assert len(found.problems) == 1
