"""Lists of nodes and of numbers as Slurm shortens them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, strategies as st

from railscope.slurm import SlurmFormatError
from railscope.slurm.node_lists import MAX_NODES, expand_nodes, expand_numbers

LISTS = {
    "n[01-03,07]": ["n01", "n02", "n03", "n07"],
    "n1": ["n1"],
    "n1,n2": ["n1", "n2"],
    "n[1-2],login[1,3]": ["n1", "n2", "login1", "login3"],
    "n[8-11]": ["n8", "n9", "n10", "n11"],
    "n[008-011]": ["n008", "n009", "n010", "n011"],
    "n[08-09,100]": ["n08", "n09", "n100"],
    "gpu-[1-2]-ib": ["gpu-1-ib", "gpu-2-ib"],
    "r[0-1]n[1-2]": ["r0n1", "r0n2", "r1n1", "r1n2"],
    "node[1433,1889-1890]": ["node1433", "node1889", "node1890"],
    "": [],
    "(null)": [],
}


@pytest.mark.parametrize("text", LISTS)
def test_lists(text):
    assert expand_nodes(text) == tuple(LISTS[text])


@pytest.mark.parametrize(
    "text", ["n[", "n]", "n[]", "n[a]", "n[2-1]", "n[1-]", "n[[1]]", ",", "n,", "n[1-2", "n[1,]"]
)
def test_input_that_is_not_a_list(text):
    with pytest.raises(SlurmFormatError, match="expected a list"):
        expand_nodes(text)


@pytest.mark.parametrize(
    "text", ["n[0-999999999]", "n[0-65536]", "a[0-9999]b[0-9999]", "a[0-40000],b[0-40000]"]
)
def test_a_list_that_would_fill_the_memory(text):
    with pytest.raises(SlurmFormatError, match="at most 65536"):
        expand_nodes(text)


def test_the_longest_list():
    assert len(expand_nodes(f"n[1-{MAX_NODES}]")) == MAX_NODES


def test_a_bound_of_the_caller():
    assert expand_numbers("0,1-3", 4) == (0, 1, 2, 3)
    with pytest.raises(SlurmFormatError, match="at most 4 numbers"):
        expand_numbers("0,1-4", 4)


def ranged(values: list[int], width: int = 1) -> str:
    """The values as Slurm shortens them: neighbours that count up become a range."""
    ranges: list[list[int]] = []
    for value in values:
        if ranges and value == ranges[-1][-1] + 1:
            ranges[-1].append(value)
        else:
            ranges.append([value])
    return ",".join(
        f"{r[0]:0{width}d}" + (f"-{r[-1]:0{width}d}" if len(r) > 1 else "") for r in ranges
    )


VALUES = st.lists(st.integers(0, 2000), min_size=1, max_size=40)


@given(VALUES)
def test_numbers_come_back(values):
    assert expand_numbers(ranged(values)) == tuple(values)


@given(
    st.lists(st.tuples(st.from_regex("[a-z][a-z-]{0,5}", fullmatch=True), VALUES), min_size=1),
    st.integers(1, 6),
)
def test_nodes_come_back(racks, width):
    listed = ",".join(f"{name}[{ranged(values, width)}]" for name, values in racks)
    names = [f"{name}{value:0{width}d}" for name, values in racks for value in values]
    assert expand_nodes(listed) == tuple(names)


@given(st.one_of(st.text(), st.text("n[]-,0129")))
def test_any_text_is_a_list_or_is_none(text):
    for parse in (expand_nodes, expand_numbers):
        with contextlib.suppress(SlurmFormatError):
            parse(text)
