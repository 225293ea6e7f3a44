"""Pods as Kubernetes lists them: their number of GPUs, and their times."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, strategies as st

from railscope_collector.jobs.bad_lines import JobListError
from railscope_collector.jobs.job_list import JobList
from railscope_collector.jobs.kubernetes import read_kubernetes

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
