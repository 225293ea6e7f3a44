"""Generic resources of Slurm."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, strategies as st

from railscope.slurm import SlurmFormatError
from railscope.slurm.resources import Gres, ShardShare, parse_gres, parse_tres

TEXTS = {
    "gpu:h100:4(IDX:0-3)": [Gres("gpu", "h100", 4, (0, 1, 2, 3))],
    "gpu:4(IDX:0,2-3)": [Gres("gpu", "", 4, (0, 2, 3))],
    "gpu:a100_3g.20gb:2(IDX:0,3)": [Gres("gpu", "a100_3g.20gb", 2, (0, 3))],
    "gpu:0(IDX:)": [Gres("gpu", "", 0, ())],
    "gpu(CNT:1)": [Gres("gpu", "", 1)],
    "gpu:h100(CNT:3)": [Gres("gpu", "h100", 3)],
    "gpu": [Gres("gpu", "", 1)],
    "gpu:h100": [Gres("gpu", "h100", 1)],
    "shard:8(8/16,0/16)": [Gres("shard", "", 8, None, (ShardShare(8, 16), ShardShare(0, 16)))],
    "gpu:h100:2(S:0-1)": [Gres("gpu", "h100", 2)],
    "gpu:h100:2(IDX:0,4),gpu:l4:1(IDX:7),shard:2(2/8,0/8)": [
        Gres("gpu", "h100", 2, (0, 4)),
        Gres("gpu", "l4", 1, (7,)),
        Gres("shard", "", 2, None, (ShardShare(2, 8), ShardShare(0, 8))),
    ],
    "bandwidth:4G": [Gres("bandwidth", "", 4 << 30)],
    "": [],
    "(null)": [],
}


@pytest.mark.parametrize("text", TEXTS)
def test_what_a_job_holds(text):
    assert parse_gres(text) == tuple(TEXTS[text])


@pytest.mark.parametrize(
    "text", [",", "gpu,", ":4", "gpu:4(IDX:3-1)", "gpu:4(IDX:0-3", "gpu(1/2", "gpu(WHAT:1)", "gpu()"]
)  # fmt: skip
def test_input_that_is_not_a_resource(text):
    with pytest.raises(SlurmFormatError, match=r"invalid (generic resource|list) "):
        parse_gres(text)


def test_an_index_list_that_would_fill_the_memory():
    with pytest.raises(SlurmFormatError, match="at most"):
        parse_gres("gpu:1(IDX:0-999999999)")


def test_counts_over_all_nodes():
    assert parse_tres("cpu=24,mem=10.50G,node=1,billing=112,gres/gpu=2,gres/gpu:h100=2") == {
        "gpu": 2,
        "gpu:h100": 2,
    }
    assert parse_tres("gres/gpumem=1280.50G,gres/gpuutil=98") == {
        "gpumem": 1280 * 2**30 + 2**29,
        "gpuutil": 98,
    }
    assert parse_tres("") == parse_tres("(null)") == {}


@pytest.mark.parametrize("text", ["gres/gpu", "gres/gpu=", "gres/gpu=-1", "gres/gpu=2,", "gpu"])
def test_input_that_is_not_a_list_of_counts(text):
    with pytest.raises(SlurmFormatError, match="invalid generic resource"):
        parse_tres(text)


NAMES = st.from_regex("[a-z][a-z0-9_.]{0,8}", fullmatch=True)
INDICES = st.lists(st.integers(0, 63), unique=True, min_size=1).map(sorted).map(tuple)


@given(st.lists(st.tuples(NAMES, NAMES | st.just(""), INDICES), max_size=4))
def test_indices_come_back(held):
    text = ",".join(
        f"{name}{':' if kind else ''}{kind}:{len(at)}(IDX:{','.join(map(str, at))})"
        for name, kind, at in held
    )
    assert parse_gres(text) == tuple(Gres(name, kind, len(at), at) for name, kind, at in held)


@given(st.one_of(st.text(), st.text("gpu:,()IDXCNTS0-9/=K.\n")))
def test_any_text_is_a_list_or_is_none(text):
    for parse in (parse_gres, parse_tres):
        with contextlib.suppress(SlurmFormatError):
            parse(text)
