"""Valid lines of a ClusterCockpit list, and messages about invalid ones."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, strategies as st

from railscope.timestamps import FOREVER_NS
from railscope_collector.jobs.bad_lines import BadLines, JobListError
from railscope_collector.jobs.clustercockpit import read_clustercockpit
from railscope_collector.jobs.job_list import (
    JobList,
    ListedGpu,
    ListedJob,
    UnnamedGpus,
    pci_address,
)
from railscope_collector.jobs.job_metering import meter_jobs

S = 1_000_000_000
LINE = {
    "job_id": 7, "start_time": 100, "duration": 20, "project": "p", "hpc_user": "u",
    "num_acc": 2, "job_state": "completed",
    "resources": [
        {"hostname": "n1", "accelerators": ["00000000:C1:00.0"]},
        {"hostname": "n2", "accelerators": ["0000:c1:00.0"]},
    ],
}  # fmt: skip


def line(**fields: object) -> str:
    return json.dumps(LINE | fields)


def accelerators(*named: object) -> list[dict[str, object]]:
    return [{"hostname": "n1", "accelerators": list(named)}]


def test_a_job_has_its_gpus_by_node_and_address():
    assert read_clustercockpit([line(), ""]) == JobList(
        (
            ListedJob(
                100 * S,
                "7",
                "p",
                "u",
                120 * S,
                (ListedGpu("n1", "00000000:C1:00.0"), ListedGpu("n2", "00000000:C1:00.0")),
            ),
        )
    )


def test_a_list_has_the_gpus_of_one_cluster():
    found = [line(cluster="alex"), line(job_id=8), line(job_id=9, cluster="fritz")]
    message = r"^line 3: cluster: 'fritz': expected 'alex', the cluster of line 1; fix: import"
    with pytest.raises(JobListError, match=message):
        read_clustercockpit(found, BadLines(collect=True))
    assert read_clustercockpit(found[:1]).cluster == "alex"
    without_gpus = line(cluster="fritz", num_acc=0, resources=[{"hostname": "n1"}])
    assert len(read_clustercockpit([found[0], without_gpus]).jobs) == 1


def test_jobs_without_gpus_running_and_pending_ones_are_counted():
    read = read_clustercockpit(
        [
            line(num_acc=0, resources=[{"hostname": "n1"}]),
            line(num_acc=0, resources=[{"hostname": "n1", "accelerators": None}]),
            line(job_id=8, job_state="running"),
            line(job_id=9, job_state="pending"),
        ]
    )
    assert (read.jobs, read.without_gpus, read.never_started) == ((), 2, 1)
    (job,) = read.unended
    assert (job.id, job.end_ns) == ("8", FOREVER_NS)


def test_a_gpu_without_an_address_is_not_guessed():
    text = line(resources=accelerators("", "MIG-4f5c", "00000000:C1:00.0"), num_acc=5)
    read = read_clustercockpit([text])
    (job,) = read.jobs
    assert job.gpus == (ListedGpu("n1", "00000000:C1:00.0"),)
    assert job.unplaced == (
        UnnamedGpus("n1", 1, '"": expected a PCI address'),
        UnnamedGpus("n1", 1, '"MIG-4f5c": expected a PCI address'),
        UnnamedGpus("n1", 2, "is not named"),
    )
    metered = meter_jobs(read.jobs)
    assert metered.tenants == {"p": 20 * S}
    assert metered.unplaced_ns == {"p": 80 * S}


def test_a_job_that_is_requeued_counts_twice_and_one_that_is_repeated_once():
    read = read_clustercockpit([line(), line(start_time=200), line()])
    assert [job.claim for job in read.jobs] == ["7@100", "7@200"]
    assert meter_jobs(read.jobs).tenants == {"p": 80 * S}


TWICE = accelerators("00000000:C1:00.0", "00000000:c1:00.0")
WRONG = [
    ({"job_id": 0}, "job_id: 0: expected a whole number of at least 1"),
    ({"job_id": True}, "job_id: true: expected a whole number of at least 1"),
    ({"job_id": "7"}, 'job_id: "7": expected a whole number of at least 1'),
    ({"start_time": 1.5}, "start_time: 1.5: expected a whole number of at least 0"),
    ({"start_time": -1}, "start_time: -1: expected a whole number of at least 0"),
    ({"start_time": 1 << 40}, "start_time: 1099511627776: expected a whole number of at least 0"),
    ({"duration": None}, "duration: null: expected a whole number of at least 0"),
    ({"project": ""}, 'project: "": expected a printable name'),
    ({"project": "a\nb"}, 'project: "a\\nb": expected a printable name'),
    ({"hpc_user": 3}, "hpc_user: 3: expected a printable name"),
    ({"job_state": 3}, "job_state: 3: expected a printable name"),
    ({"resources": {}}, "resources: {}: expected a list"),
    ({"resources": ["n1"]}, 'resources[0]: "n1": expected an object'),
    ({"resources": [{}]}, "resources[0].hostname: null: expected a printable name"),
    ({"resources": [{"hostname": "n", "accelerators": "x"}]}, 'accelerators: "x": expected a list'),
    ({"resources": accelerators(3)}, "resources[0].accelerators: 3: expected a string"),
    (
        {"resources": TWICE},
        "resources[0].accelerators: duplicate 00000000:C1:00.0: expected it once",
    ),
    ({"num_acc": 1}, "num_acc: 1: expected 2, the number of named accelerators"),
    ({"project": "x" * 99 + "\n"}, 'project: "' + "x" * 39 + "...: expected a printable name"),
]


@pytest.mark.parametrize(("fields", "reason"), WRONG)
def test_a_wrong_field_is_named_with_its_line(fields, reason):
    with pytest.raises(JobListError) as caught:
        read_clustercockpit([line(job_id=1), "", line(**fields)])
    assert str(caught.value).startswith("line 3: ")
    assert str(caught.value).endswith(reason)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("field", sorted(set(LINE) - {"num_acc", "job_state"}))
def test_a_missing_field_is_named(field):
    rest = {name: value for name, value in LINE.items() if name != field}
    with pytest.raises(JobListError, match=rf"^line 1: {field}: missing field$"):
        read_clustercockpit([json.dumps(rest)])


@pytest.mark.parametrize("text", ["{", "[]", "7", "job_id=7", "[" * 100_000])
def test_a_value_that_is_not_a_json_object_is_rejected(text):
    with pytest.raises(JobListError, match=r"^line 2: .*JSON"):
        read_clustercockpit([line(), text])


def test_two_lines_that_contradict_each_other_are_rejected():
    with pytest.raises(JobListError, match=r"^line 2: job 7 differs from line 1$"):
        read_clustercockpit([line(), line(duration=21)])


@given(
    st.sampled_from(sorted(LINE)),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text()
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
)
def test_any_value_anywhere_is_read_or_rejected_with_its_field(field, value):
    try:
        read = read_clustercockpit([line(**{field: value})])
    except JobListError as error:
        assert str(error).startswith(f"line 1: {field}")  # noqa: PT017 - or it is read
    else:
        assert len(read.jobs) + read.without_gpus + read.never_started + len(read.running) == 1


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:0e:00.0", "00000000:0E:00.0"),
        ("00000000:0E:00.0", "00000000:0E:00.0"),
        ("0e:00.0", None),
        ("", None),
        ("00000000:0E:00.8", None),
        ("00000000:0E:00.0\n", None),
        ("GPU-5a2c", None),
    ],
)
def test_an_address_has_one_form(text, address):
    assert pci_address(text) == address
