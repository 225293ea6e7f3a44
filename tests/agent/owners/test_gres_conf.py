"""The devices that gres.conf and slurmd give to the indices of Slurm's generic resources."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.owners import FormatError
from agent.owners.slurm import GresDevice, parse_gres_conf, parse_slurmd

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
        GresDevice(0, "a100_3g.20gb", ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21")),
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
