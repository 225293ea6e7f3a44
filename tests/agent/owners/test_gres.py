"""Generic resources of Slurm, and the devices that gres.conf and slurmd give to their indices."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.owners import FormatError
from agent.owners.gres import Gres, Share, parse_gres, parse_tres
from agent.owners.gres_conf import Device, parse_gres_conf, parse_slurmd

TEXTS = {
    "gpu:h100:4(IDX:0-3)": [Gres("gpu", "h100", 4, (0, 1, 2, 3))],
    "gpu:4(IDX:0,2-3)": [Gres("gpu", "", 4, (0, 2, 3))],
    "gpu:a100_3g.20gb:2(IDX:0,3)": [Gres("gpu", "a100_3g.20gb", 2, (0, 3))],
    "gpu:0(IDX:)": [Gres("gpu", "", 0, ())],
    "gpu(CNT:1)": [Gres("gpu", "", 1)],
    "gpu:h100(CNT:3)": [Gres("gpu", "h100", 3)],
    "gpu": [Gres("gpu", "", 1)],
    "gpu:h100": [Gres("gpu", "h100", 1)],
    "shard:8(8/16,0/16)": [Gres("shard", "", 8, None, (Share(8, 16), Share(0, 16)))],
    "gpu:h100:2(S:0-1)": [Gres("gpu", "h100", 2)],
    "gpu:h100:2(IDX:0,4),gpu:l4:1(IDX:7),shard:2(2/8,0/8)": [
        Gres("gpu", "h100", 2, (0, 4)),
        Gres("gpu", "l4", 1, (7,)),
        Gres("shard", "", 2, None, (Share(2, 8), Share(0, 8))),
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
def test_what_is_no_resource(text):
    with pytest.raises(FormatError, match="is no"):
        parse_gres(text)


def test_an_index_list_that_would_fill_the_memory():
    with pytest.raises(FormatError, match="more than"):
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
def test_what_is_no_list_of_counts(text):
    with pytest.raises(FormatError, match="is no generic resource"):
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
        with contextlib.suppress(FormatError):
            parse(text)


CONF = r"""
# what the servers have
AutoDetect=nvml
NodeName=n[01-02] AutoDetect=off Name=gpu Type=h100 File=/dev/nvidia[2-3] Cores=0-15
NodeName=n[01-02] name=gpu type=l4 \
    file=/dev/nvidia0,/dev/nvidia[4,6]  # mixed
NodeName=n[01-02] Name=shard Count=32
NodeName=n03 Name=gpu Type="a100_3g.20gb" MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21
"""


def test_indices_follow_the_order_of_the_file_and_not_the_numbers_of_devices():
    conf = parse_gres_conf(CONF, "n01")
    assert conf.is_certain
    assert [(device.index, device.type, device.minor) for device in conf.devices] == [
        (0, "h100", 2),
        (1, "h100", 3),
        (2, "l4", 0),
        (3, "l4", 4),
        (4, "l4", 6),
    ]


def test_where_slurmd_finds_devices_the_file_is_not_certain():
    conf = parse_gres_conf(CONF, "n03")
    assert not conf.is_certain
    assert conf.auto_detect == "nvml"
    assert conf.devices == (
        Device(0, "a100_3g.20gb", ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21")),
    )
    assert conf.devices[0].minor == 0
    assert parse_gres_conf("AutoDetect=nvml\n", "n9").devices == ()


def test_other_resources_and_other_nodes_have_none():
    assert parse_gres_conf(CONF, "n01", "mps").devices == ()
    assert parse_gres_conf("NodeName=a Name=gpu File=/dev/nvidia0", "b").devices == ()
    assert parse_gres_conf("Name=shard Count=8", "b", "shard").devices == ()


@pytest.mark.parametrize(
    "text", ["include gpus.conf", "what is this", "Name=gpu File=/dev/nvidia[0"]
)
def test_a_file_that_does_not_tell_all(text):
    with pytest.raises(FormatError):
        parse_gres_conf(text, "n1")


PRINTED = """\
slurmd: gpu/nvml: _get_system_gpu_list_nvml: 3 GPU system device(s) detected
slurmd: Gres Name=gpu Type=nvidia_a100 Count=1 Index=1 ID=7696487 File=/dev/nvidia1 Cores=0-63 CoreCnt=128 Links=-1,4 Flags=HAS_FILE,HAS_TYPE,ENV_NVML
[2026-10-09T06:49:39.052] Gres Name=gpu Type=(null) Count=1 Index=0 ID=7696487 File=/dev/nvidia0 Links=(null) Flags=HAS_FILE
slurmd-n1: Gres Name=gpu Type=a100_3g.20gb Count=1 Index=21 ID=7696487 File=/dev/nvidia-caps/nvidia-cap21 Links=(null)
slurmd: Gres Name=gpu Type=a100_1g.5gb Count=1 Index=30 ID=7696487 File=/dev/nvidia2,/dev/nvidia-caps/nvidia-cap30
slurmd: Gres Name=gpu Type=h100 Count=2 Index=3 ID=7696487 File=/dev/nvidia[3-4]
slurmd: Gres Name=shard Count=8 ID=1
"""


def test_what_slurmd_prints_is_certain():
    devices = parse_slurmd(PRINTED)
    assert [device.index for device in devices] == [0, 1, 2, 3, 4, 5]
    assert [device.minor for device in devices] == [1, 0, None, 2, 3, 4]
    assert [device.type for device in devices][:2] == ["nvidia_a100", ""]


@given(st.one_of(st.text(), st.text('Name=gpuFil /dv[]0-9,#"\\\nGrs')))
def test_any_text_is_a_configuration_or_is_none(text):
    for parse in (lambda: parse_gres_conf(text, "n1"), lambda: parse_slurmd(text)):
        with contextlib.suppress(FormatError):
            parse()
