"""The devices that gres.conf assigns to the indices of Slurm's generic resources."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, strategies as st

from railscope.slurm import SlurmFormatError
from railscope_agent.owners.slurm import GresDevice, parse_gres_conf

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
    assert not conf.auto_detect
    assert conf.devices == tuple(map(GresDevice, range(5), (2, 3, 0, 4, 6)))


def test_where_slurmd_finds_devices_the_file_is_not_certain():
    conf = parse_gres_conf(CONF, "n03")
    assert conf.auto_detect == "nvml"
    assert conf.devices == (GresDevice(0, 0, frozenset({21})),)
    assert parse_gres_conf("AutoDetect=nvml\n", "n9").devices == ()


def test_other_resources_and_other_nodes_have_none():
    assert parse_gres_conf(CONF, "n01", "mps").devices == ()
    assert parse_gres_conf("NodeName=a Name=gpu File=/dev/nvidia0", "b").devices == ()
    assert parse_gres_conf("Name=shard Count=8", "b", "shard").devices == ()


@pytest.mark.parametrize(
    "text", ["include gpus.conf", "what is this", "Name=gpu File=/dev/nvidia[0"]
)
def test_a_file_that_leaves_out_fields(text):
    with pytest.raises(SlurmFormatError):
        parse_gres_conf(text, "n1")


@given(st.one_of(st.text(), st.text('Name=gpuFil /dv[]0-9,#"\\\nGrs')))
def test_any_text_is_a_configuration_or_is_none(text):
    with contextlib.suppress(SlurmFormatError):
        parse_gres_conf(text, "n1")
