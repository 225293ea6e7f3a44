"""Pods as Kubernetes lists them: their number of GPUs, and their times."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from railscope.timestamps import FOREVER_NS
from railscope_collector.jobs.bad_lines import JobListError
from railscope_collector.jobs.job_list import JobList, ListedJob, UnnamedGpus
from railscope_collector.jobs.job_metering import meter_jobs
from railscope_collector.jobs.kubernetes import KUBERNETES_UNNAMED, read_kubernetes

S = 1_000_000_000
START, END = "2026-01-01T00:00:00Z", "2026-01-01T02:00:00Z"
START_NS, END_NS = 1_767_225_600 * S, 1_767_232_800 * S
GPU = "nvidia.com/gpu"


def container(**devices: int) -> dict[str, Any]:
    limits = {f"nvidia.com/{name}": str(count) for name, count in devices.items()}
    return {"name": "c", "resources": {"limits": {"cpu": "4", **limits}}}


def ended(*finished: str) -> list[dict[str, Any]]:
    return [{"state": {"terminated": {"exitCode": 0, "finishedAt": at}}} for at in finished]


def pod(name: str = "train-0", gpus: int = 2, **changes: Any) -> dict[str, Any]:
    """A pod that ran for two hours; `changes` are of its status."""
    return {
        "kind": "Pod",
        "metadata": {"uid": f"uid of {name}", "name": name, "namespace": "research"},
        "spec": {"nodeName": "n1", "containers": [container(gpu=gpus)]},
        "status": {
            "phase": "Succeeded",
            "startTime": START,
            "containerStatuses": ended(END),
            **changes,
        },
    }


def read(*pods: Any) -> JobList:
    return read_kubernetes(json.dumps({"kind": "List", "items": pods}))


JOB = ListedJob(
    START_NS,
    "research/train-0",
    "research",
    "",
    END_NS,
    unplaced=(UnnamedGpus("n1", 2, KUBERNETES_UNNAMED),),
)


def test_a_pod_has_its_gpus_from_admission_to_the_end_of_its_last_container():
    assert read(pod()) == JobList((JOB,))
    two = pod(containerStatuses=ended("2026-01-01T01:00:00Z", END))
    assert read(two) == JobList((JOB,))


def test_pods_without_gpus_that_wait_that_run_and_that_were_rejected():
    found = read(
        pod("web", 0),
        pod("waits", phase="Pending", startTime=None, containerStatuses=None),
        pod("refused", phase="Failed", containerStatuses=[]),
        pod("pulls", phase="Pending", containerStatuses=[{"state": {"waiting": {}}}]),
        pod("runs", phase="Running", containerStatuses=[{"state": {"running": {}}}]),
    )
    assert (found.jobs, found.without_gpus, found.never_started) == ((), 1, 2)
    assert found.running == ("research/pulls", "research/runs")
    assert {(job.start_ns, job.end_ns) for job in found.unended} == {(START_NS, FOREVER_NS)}


def test_changes_follow_one_another_and_the_last_counts():
    runs = pod(phase="Running", containerStatuses=[{"state": {"running": {}}}])
    watched = [{"type": "ADDED", "object": runs}, {"type": "DELETED", "object": pod()}]
    lines = "\n".join(json.dumps(one) for one in watched)
    indented = "\n".join(json.dumps(one, indent=4) for one in watched)
    assert read_kubernetes(lines) == read_kubernetes(indented) == JobList((JOB,))
    assert read_kubernetes(json.dumps({"items": [runs]})).running == ("research/train-0",)


def test_a_pod_that_was_taken_away_by_force_had_its_gpus_until_then():
    gone = pod(phase="Running", containerStatuses=[{"state": {"running": {}}}])
    gone["metadata"]["deletionTimestamp"] = END
    assert read_kubernetes(json.dumps({"type": "DELETED", "object": gone})) == JobList((JOB,))
    assert read(gone).running == ("research/train-0",)


LOST = {"terminated": {"reason": "ContainerStatusUnknown", "exitCode": 137, "finishedAt": None}}


@pytest.mark.parametrize("last", [{"state": LOST}, {"state": {"waiting": {}}, "lastState": LOST}])
def test_an_evicted_pod_had_its_gpus_until_its_eviction(last):
    """The kubelet could not locate its container; the init container ended within seconds."""
    initialized = ended("2026-01-01T00:00:05Z")
    disrupted = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": END}
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T01:00:00Z"}
    changes = {"phase": "Failed", "initContainerStatuses": initialized}
    evicted = pod(
        containerStatuses=[last, {"state": LOST}], conditions=[ready, disrupted], **changes
    )
    # Its deletion days later is not its end.
    evicted["metadata"]["deletionTimestamp"] = "2026-01-09T00:00:00Z"
    assert read(evicted) == JobList((JOB,))
    assert read_kubernetes(json.dumps({"type": "DELETED", "object": evicted})) == JobList((JOB,))
    evicted["status"]["conditions"] = [ready, disrupted | {"status": "False"}]
    with pytest.raises(
        JobListError, match="Failed: expected a time at which each of its containers"
    ):
        read(evicted)


def test_containers_that_never_ran_have_no_end():
    waiting = [{"state": {"waiting": {"reason": "PodInitializing"}}}]
    failed = pod(phase="Failed", initContainerStatuses=ended(END), containerStatuses=waiting)
    assert read(failed) == JobList((JOB,))
    pulls = pod(phase="Pending", initContainerStatuses=ended(START), containerStatuses=waiting)
    pulls["metadata"]["deletionTimestamp"] = END
    assert read_kubernetes(json.dumps({"type": "DELETED", "object": pulls})) == JobList((JOB,))


def test_a_name_that_is_used_again_is_another_run():
    again = pod(startTime=END, containerStatuses=ended("2026-01-01T03:00:00Z"))
    again["metadata"]["uid"] = "another"
    assert [job.claim for job in read(pod(), again).jobs] == [
        "research/train-0@1767225600",
        "research/train-0@1767232800",
    ]


def test_requests_of_containers_together_or_of_an_init_container():
    spec = {
        "nodeName": "n1",
        "initContainers": [
            container(gpu=1) | {"restartPolicy": "Always"},
            container(gpu=4),
        ],
        "containers": [container(gpu=1), container(gpu=2), container()],
    }
    (job,) = read(pod() | {"spec": spec}).jobs
    assert job.unplaced == (UnnamedGpus("n1", 5, KUBERNETES_UNNAMED),)
    (job,) = read(pod() | {"spec": spec | {"initContainers": []}}).jobs
    assert job.unplaced == (UnnamedGpus("n1", 3, KUBERNETES_UNNAMED),)


def test_parts_of_gpus_are_reported_and_not_counted():
    spec = {"containers": [container(**{"mig-1g.10gb": 2, "gpu.shared": 1, "gpu": 1})]}
    (job,) = read(pod() | {"spec": spec}).jobs
    assert [(part.gpus, part.reason.partition(" ")[0]) for part in job.unplaced] == [
        (1, "Kubernetes"),
        (0, "nvidia.com/gpu.shared=1"),
        (0, "nvidia.com/mig-1g.10gb=2"),
    ]


WRONG = [
    ("{", "document 1: invalid JSON"),
    ("[]", "document 1: expected a JSON object"),
    ('{"items": 3}', "document 1: items: expected a list"),
    ('{"items": [{}]}', "pod 1: metadata.uid: missing field"),
    ('{"items": [3]}', "pod 1: metadata.uid: missing field"),
    (
        json.dumps(pod(startTime="yesterday")),
        "pod 1 'research/train-0': status.startTime: 'yesterday': expected a time from",
    ),
    (
        json.dumps(pod() | {"spec": 7}),
        "pod 1 'research/train-0': spec: 7: expected `object`, got `int`",
    ),
    (
        json.dumps(pod() | {"spec": {}}),
        "pod 1 'research/train-0': spec: {}: object missing required field `containers`",
    ),
    (
        json.dumps(pod(containerStatuses=[3])),
        r"pod 1 'research/train-0': status.containerStatuses\[0\]: 3: expected `object`",
    ),
    (
        json.dumps(pod(gpus="x")),
        "pod 1 'research/train-0': spec.containers.resources.limits.nvidia.com/gpu: 'x': expected a count",
    ),
    (json.dumps(pod(startTime="2026-01-01T00:00:00")), "expected a time from 1970 to 2105"),
    (json.dumps(pod(gpus=-1)), "expected a count of devices"),
    (json.dumps(pod("x\x1b")), "expected a printable name"),
    (json.dumps(pod()) + "\n{", "document 2: invalid JSON"),
]


@pytest.mark.parametrize(("text", "problem"), WRONG)
def test_input_that_is_not_a_list_of_pods(text, problem):
    with pytest.raises(JobListError, match=problem):
        read_kubernetes(text)


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 9))))
def test_gpu_time_is_count_times_duration(pods):
    expected: Counter[str] = Counter()
    made = []
    for number, (start, seconds, gpus) in enumerate(pods):
        at = [
            f"1970-01-{1 + t // 86400:02}T{t // 3600 % 24:02}:{t // 60 % 60:02}:{t % 60:02}Z"
            for t in (start, start + seconds)
        ]
        made.append(pod(f"p{number}", gpus, startTime=at[0], containerStatuses=ended(at[1])))
        if gpus:
            expected["research"] += gpus * seconds * S
    assert meter_jobs(read(*made).jobs).unplaced_ns == expected


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.just(START),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["state", "limits", GPU, "terminated"]), inner)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec", "status"]), ANYTHING), ANYTHING)
def test_any_json_is_pods_or_is_rejected(changes, other):
    for document in (pod() | changes, other):
        try:
            found = read_kubernetes(json.dumps(document))
        except JobListError:
            continue
        assert isinstance(found, JobList)
