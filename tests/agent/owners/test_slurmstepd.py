"""Titles of the daemons of steps."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, strategies as st

from agent.owners import FormatError
from agent.owners.slurm import SlurmStep, parse_step_title

TITLES = {
    b"slurmstepd: [3385.0]\0": SlurmStep(3385, "0"),
    b"slurmstepd: [3385.batch]": SlurmStep(3385, "batch"),
    b"slurmstepd: [3385.extern stepmgr]\0\0\0": SlurmStep(3385, "extern"),
    b"slurmstepd: [3385.interactive]   \0": SlurmStep(3385, "interactive"),
    b"slurmstepd: [3385.0+1]\0": SlurmStep(3385, "0+1"),
}


@pytest.mark.parametrize("cmdline", TITLES)
def test_titles(cmdline):
    assert parse_step_title(cmdline) == TITLES[cmdline]


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
def test_what_is_none(cmdline):
    with pytest.raises(FormatError, match="invalid process title"):
        parse_step_title(cmdline)


@given(st.integers(0, 2**32 - 1), st.from_regex("[a-z0-9+]+", fullmatch=True))
def test_steps_come_back(job, name):
    assert parse_step_title(f"slurmstepd: [{job}.{name}]\0".encode()) == SlurmStep(job, name)


@given(st.binary())
def test_any_bytes_are_a_title_or_are_none(cmdline):
    with contextlib.suppress(FormatError):
        parse_step_title(cmdline)
