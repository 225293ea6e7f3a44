"""Slurm's names for jobs of version 26.05 and later."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.owners import FormatError
from agent.owners.slurm import SLUID_PATTERN, Sluid, decode_sluid

SLUIDS = st.builds(
    Sluid, st.integers(0, 4095), st.integers(0, 2**42 - 1), st.integers(0, 2**10 - 1)
)


def test_the_parts_of_one():
    assert decode_sluid("sEKNKTV3WPV500") == Sluid(
        cluster=3741, milliseconds=1_781_174_000_485, sequence=0
    )


def test_the_smallest_and_the_largest():
    assert str(Sluid(0, 0, 0)) == "s0000000000000"
    assert str(Sluid(4095, 2**42 - 1, 1023)) == "sFZZZZZZZZZZZZ"


@given(SLUIDS)
def test_what_was_written_is_read(sluid):
    assert decode_sluid(str(sluid)) == sluid
    assert re.fullmatch(SLUID_PATTERN, str(sluid))


@given(SLUIDS)
def test_a_person_may_write_it_in_small_letters_and_mistake_some(sluid):
    mistaken = str(sluid).replace("0", "o").replace("1", "l").lower()
    assert decode_sluid(mistaken) == sluid


@given(SLUIDS, SLUIDS)
def test_names_sort_as_what_they_stand_for(one, other):
    def parts(sluid: Sluid) -> tuple[int, int, int]:
        return (sluid.cluster, sluid.milliseconds, sluid.sequence)

    assert (str(one) < str(other)) == (parts(one) < parts(other))


@pytest.mark.parametrize(
    "text",
    ["", "s", "sEKNKTV3WPV50", "sEKNKTV3WPV5000", "xEKNKTV3WPV500", "sGKNKTV3WPV500", "sEKNKTV3WPVU00", "sEKNKTV3WPV500\n", "\u017fEKNKTV3WPV500"],
)  # fmt: skip
def test_what_is_none(text):
    with pytest.raises(FormatError, match="is no SLUID"):
        decode_sluid(text)


@given(st.text())
def test_any_text_is_one_or_is_none(text):
    with contextlib.suppress(FormatError):
        decode_sluid(text)
