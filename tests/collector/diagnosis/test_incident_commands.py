"""Commands of incidents: for a shell, with the names of the cause."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, strategies as st

from railscope.api import EntityDocument, GpuDocument, LeafDocument, NicDocument, NodeDocument
from railscope_collector.diagnosis.incident_classes import CLASSES
from railscope_collector.diagnosis.incident_commands import commands_of

GPU = GpuDocument("gpu-node-1", 4, "GPU-1b98b982", "0000:9d:00.0")
NIC = NicDocument("gpu-node-1", "ens4f0np0", "mlx5_3", "0000:5e:00.0", 3, "leaf-3", "Ethernet8")
NODE = NodeDocument("gpu-node-1")
NEEDS_NO_DEVICE = {"nccl_hang"}


@pytest.mark.parametrize(
    "name", [name for name, each in CLASSES.items() if each.severity == "critical"]
)
def test_each_class_that_pages_has_commands(name: str) -> None:
    found = [list(commands_of(name, "b1d0ed7ec447", cause)) for cause in (GPU, NIC, NODE)]
    assert any(found) or name in NEEDS_NO_DEVICE
    words = [word for commands in found for command in commands for word in shlex.split(command)]
    assert not any("{" in word for word in words)


def test_commands_name_the_device_and_the_incident() -> None:
    found = list(commands_of("ecc_uncorrectable", "b1d0ed7ec447", GPU))
    assert found[0] == (
        "scontrol update nodename=gpu-node-1 state=drain reason='railscope ecc_uncorrectable b1d0ed7ec447'"
    )
    assert "ssh gpu-node-1 'sudo nvidia-smi --gpu-reset -i 0000:9d:00.0'" in found
    assert found[-1] == "kubectl uncordon gpu-node-1"
    assert "ssh gpu-node-1 'sudo ethtool -m ens4f0np0'" in list(commands_of("link_down", "a", NIC))


@pytest.mark.parametrize("cause", [NODE, LeafDocument("leaf-3", 0, 3), GpuDocument("", 4, "", "")])
def test_a_command_without_its_names_is_left_out(cause: EntityDocument) -> None:
    found = list(commands_of("ecc_uncorrectable", "a", cause))
    assert not any("gpu-reset" in command for command in found)
    assert bool(found) is isinstance(cause, NodeDocument)


@given(st.text(max_size=20))
def test_a_hostile_name_is_one_word_of_a_command_or_none(name: str) -> None:
    nic = NicDocument("n", name, "", "", None, "", "")
    for command in commands_of("link_down", "a", nic):
        *_, remote = shlex.split(command)
        assert shlex.split(remote)[-1] == name, "the shell of the node parses it again"
        assert not name.startswith("-")
