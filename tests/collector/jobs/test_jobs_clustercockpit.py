"""Valid lines of a ClusterCockpit list, and messages about invalid ones."""

from __future__ import annotations

import json

from hypothesis import given, strategies as st
from support.examples import fewer_examples

from railscope_collector.jobs.bad_lines import JobListError
from railscope_collector.jobs.clustercockpit import read_clustercockpit

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


@fewer_examples(30)
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
