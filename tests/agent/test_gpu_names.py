"""Texts for people contain all names of a device."""

from __future__ import annotations

import pytest

from railscope.catalog.entities import GPU, NIC, NODE
from railscope.frame import Entity
from railscope_agent.commands.check import DeviceNames

NAMES = DeviceNames(
    [
        Entity(NODE),
        Entity(GPU, ("GPU-1a",), {"index": "3", "pci_address": "0000:1b:00.0"}),
        Entity(GPU, ("GPU-1a",)),
        Entity(NIC, ("ens1f0",), {"rdma_device": "mlx5_0", "rail": "2"}),
        Entity(NIC, ("ens1f0np0",), {"rdma_device": "mlx5_9"}),
        Entity(NIC, ("lo",)),
    ]
)


@pytest.mark.parametrize(
    ("text", "spelled_out"),
    [
        ("GPU GPU-1a: failed", "GPU GPU-1a (index 3, 0000:1b:00.0): failed"),
        ("Xid 79 on 0000:1b:00.0", "Xid 79 on 0000:1b:00.0 (GPU 3, GPU-1a)"),
        ("settings of ens1f0: 27", "settings of ens1f0 (mlx5_0, rail 2): 27"),
        ("settings of ens1f0np0", "settings of ens1f0np0 (mlx5_9)"),
        ("statistics of lo: none", "statistics of lo: none"),
        ("GPU-1ab, ens1f0.100 and xens1f0", "GPU-1ab, ens1f0.100 and xens1f0"),
        ("ens1f0.", "ens1f0 (mlx5_0, rail 2)."),
    ],
)
def test_other_names_stand_behind_a_name(text: str, spelled_out: str):
    assert NAMES.spell_out(text) == spelled_out


def test_a_server_without_devices_has_no_names():
    assert DeviceNames([Entity(NODE)]).spell_out("any text") == "any text"
