"""The accounting as JSON, with the same content as the text."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC
from typing import Any

import pytest
from hypothesis import given, strategies as st

from railscope.slurm import SlurmFormatError
from railscope.slurm.job_record import SlurmJob
from railscope.slurm.sacct import AccountingError, parse_sacct, parse_sacct_json

START, END = 1_767_225_600, 1_767_232_800
HEADER = "JobIDRaw|JobID|User|Account|State|Start|End|NodeList|AllocTRES"


def in_json(**others: Any) -> dict[str, Any]:
    """A job as Slurm 23.11 and later write it."""
    return {
        "job_id": 3385,
        "array": {"job_id": 3380, "task_id": {"set": True, "infinite": False, "number": 5}},
        "user": "anna",
        "account": "physics",
        "state": {"current": ["COMPLETED"], "reason": "None"},
        "time": {"elapsed": 7200, "start": START, "end": END, "submission": START - 9},
        "nodes": "n[01-02]",
        "tres": {
            "allocated": [
                {"type": "cpu", "name": "", "id": 1, "count": 64},
                {"type": "gres", "name": "gpu", "id": 1001, "count": 5},
                {"type": "gres", "name": "gpu:h100", "id": 1002, "count": 5},
            ],
            "requested": [],
        },
        **others,
    }


def of_json(*jobs: dict[str, Any]) -> list[SlurmJob]:
    return [record.job for record in parse_sacct_json(json.dumps({"jobs": jobs}))]


def test_json_has_the_content_of_the_text():
    line = f"3385|3380_5|anna|physics|COMPLETED|{START}|{END}|n[01-02]|cpu=64,gres/gpu=5,gres/gpu:h100=5"
    assert parse_sacct_json(json.dumps({"jobs": [in_json()]})) == tuple(
        record._replace(place=1) for record in parse_sacct(f"{HEADER}\n{line}\n", None)
    )


def test_older_versions_wrote_one_state_and_plain_numbers():
    older = in_json(state={"current": "COMPLETED"}, array={"job_id": 3380, "task_id": 5})
    assert of_json(older) == of_json(in_json())


def test_what_runs_has_no_end_and_what_waits_has_no_start():
    running, waiting = of_json(
        in_json(state={"current": ["RUNNING"]}, time={"start": START, "end": 0}),
        in_json(state={"current": ["PENDING"]}, time={"start": 0, "end": 0}, nodes="None assigned"),
    )
    assert (running.start_seconds, running.end_seconds) == (START, None)
    assert (waiting.start_seconds, waiting.end_seconds, waiting.nodes) == (None, None, ())


def test_a_run_that_was_requeued_has_an_end():
    line = f"7|7|anna|physics|REQUEUED|{START}|{END}|n1|gres/gpu=1"
    (record,) = parse_sacct(f"{HEADER}\n{line}", UTC)
    assert (record.job.start_seconds, record.job.end_seconds) == (START, END)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"job_id": None}, "1: missing job ID"),
        (
            {"job_id": "1"},
            "^invalid entry 1: job_id: '1': expected `int | object | null`, got `str`$",
        ),
        ({"time": {}}, "^invalid entry 1: time: {}: object missing required field `start`$"),
        (
            {"time": {"start": {"set": True}, "end": 0}},
            "^invalid entry 1: time.start: .*required field `number`",
        ),
        (
            {"state": {"current": []}},
            r"^invalid entry 1: state.current: \[\]: expected `array` of length >= 1$",
        ),
        ({"state": 3}, "^invalid entry 1: state: 3: expected `object`, got `int`$"),
        (
            {"tres": {"allocated": [7]}},
            r"^invalid entry 1: tres.allocated\[0\]: 7: expected `object`, got `int`$",
        ),
        ({"nodes": "n[1"}, "expected a list"),
        (
            {"tres": {"allocated": [{"type": "gres", "name": "gpu", "count": -1}]}},
            "expected one number",
        ),
        (
            {"tres": {"allocated": [{"type": "gres", "name": "gpu", "count": 1}] * 2}},
            "expected one number",
        ),
    ],
)
def test_input_that_is_not_a_job(change, problem):
    with pytest.raises(AccountingError, match=problem):
        of_json(in_json(**change))


def test_an_entry_that_is_not_a_job():
    with pytest.raises(
        AccountingError, match=r"^invalid entry 1: 3: expected `object`, got `int`$"
    ):
        parse_sacct_json('{"jobs": [3]}')


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"jobs": 3}'])
def test_json_that_is_not_of_sacct(text):
    with pytest.raises(AccountingError, match="invalid JSON of sacct"):
        parse_sacct_json(text)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["set", "number", "start", "end", "current", "allocated"]), inner
        )
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(in_json())), ANYTHING))
def test_any_json_is_jobs_or_is_none(others):
    with contextlib.suppress(SlurmFormatError):
        of_json(in_json(**others))
