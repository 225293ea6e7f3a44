"""Titles of the daemons of steps."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, strategies as st

from railscope.slurm import SlurmFormatError
from railscope_agent.owners.slurm import parse_step_title


@pytest.mark.parametrize(
    "cmdline",
    [
        b"slurmstepd: [3385.0]\0",
        b"slurmstepd: [3385.batch]",
        b"slurmstepd: [3385.extern stepmgr]\0\0\0",
        b"slurmstepd: [3385.interactive]   \0",
        b"slurmstepd: [3385.0+1]\0",
    ],
)
def test_titles(cmdline):
    assert parse_step_title(cmdline) == 3385


@pytest.mark.parametrize(
    "cmdline",
    [
        b"",
        b"slurmstepd",
        b"slurmstepd: [3385]",
        b"slurmstepd: [x.0]",
        b"/usr/sbin/slurmstepd\x00infinity",
        b"sh\x00-c\x00slurmstepd: [1.0]",
        b"slurmstepd: [1.0]\x00x",
        b"slurmstepd: [1.]",
        b"slurmstepd: [1.0 x]",
    ],
)
def test_invalid_step_titles(cmdline):
    with pytest.raises(SlurmFormatError, match="invalid process title"):
        parse_step_title(cmdline)


@given(st.integers(0, 2**32 - 1), st.from_regex("[a-z0-9+]+", fullmatch=True))
def test_jobs_come_back(job, name):
    assert parse_step_title(f"slurmstepd: [{job}.{name}]\0".encode()) == job


@given(st.binary())
def test_any_bytes_are_a_title_or_are_none(cmdline):
    with contextlib.suppress(SlurmFormatError):
        parse_step_title(cmdline)
