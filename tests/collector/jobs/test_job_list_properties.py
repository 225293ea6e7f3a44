"""Job lists with any value anywhere, numbers of thousands of digits, and shares of GPUs that are only counted."""

from __future__ import annotations

import json
from collections import defaultdict
from fractions import Fraction

from hypothesis import given, strategies as st
from support.examples import fewer_examples

from railscope_collector.jobs.bad_lines import JobListError
from railscope_collector.jobs.clustercockpit import read_clustercockpit
from railscope_collector.jobs.gpu_models import GpuModels
from railscope_collector.jobs.job_list import JobList, ListedJob, UnnamedGpus
from railscope_collector.jobs.job_metering import meter_jobs
from railscope_collector.jobs.kubernetes import NodeGpuLabels, read_kubernetes
from railscope_collector.jobs.placeholder_gpus import number_placeholders

S = 1_000_000_000
NINES = "9" * 5000
START, END = "2026-01-01T00:00:00Z", "2026-01-01T02:00:00Z"
COCKPIT = {
    "job_id": 7, "start_time": 100, "duration": 20, "project": "p", "hpc_user": "u",
    "num_acc": 1, "job_state": "completed",
    "resources": [{"hostname": "n1", "accelerators": ["00000000:C1:00.0"]}],
}  # fmt: skip
POD = {
    "kind": "Pod",
    "metadata": {"uid": "1", "name": "train-0", "namespace": "research"},
    "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]},
    "status": {
        "phase": "Succeeded", "startTime": START,
        "containerStatuses": [{"state": {"terminated": {"exitCode": 0, "finishedAt": END}}}],
    },
}  # fmt: skip
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4) | st.just(START),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["state", "limits", "nvidia.com/gpu", "terminated"]), inner)
    ),
    max_leaves=6,
)  # fmt: skip


@given(st.sampled_from(sorted(COCKPIT)), ANYTHING)
def test_any_value_of_a_job_is_read_or_rejected_with_its_field(field: str, value: object) -> None:
    try:
        read = read_clustercockpit([json.dumps(COCKPIT | {field: value})])
    except JobListError as error:
        assert str(error).startswith(f"line 1: {field}")  # noqa: PT017 - or it is read
    else:
        assert len(read.jobs) + read.without_gpus + read.never_started + len(read.running) == 1


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), ANYTHING), ANYTHING)
def test_any_json_is_pods_or_is_rejected(changes: dict, other: object) -> None:
    for document in (POD | changes, other):
        try:
            found = read_kubernetes(json.dumps(document))
        except JobListError:
            continue
        assert isinstance(found, JobList)


def test_labels_of_thousands_of_digits_are_ignored() -> None:
    labels = {"nvidia.com/gpu.memory": NINES, "nvidia.com/gpu.replicas": NINES}
    assert NodeGpuLabels.parse(labels) == NodeGpuLabels()


one_job = st.tuples(
    st.integers(0, 50),
    st.integers(1, 50),
    st.sampled_from("abc"),
    st.integers(1, 3),
    st.sampled_from([Fraction(1), Fraction(1, 2), Fraction(1, 3), Fraction(3, 8), Fraction(1, 840)]),
)  # fmt: skip


@fewer_examples(200)
@given(st.lists(one_job, max_size=12))
def test_shares_are_exact_and_never_overlap(found: list[tuple]) -> None:
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
    for job in placed:
        assert len(set(job.gpus)) == len(job.gpus), "each part is on a GPU of its own"
