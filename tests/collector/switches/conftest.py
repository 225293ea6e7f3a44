"""A switch that a real snmpd serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import snmp_objects, snmpd


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[snmpd.SwitchAgent]:
    objects = snmp_objects.SwitchObjects()
    objects.add_port(10, "Vlan10", kind=53)
    objects.add_priorities(2)
    objects.add_queues(2)
    objects.add_neighbour(1, "gpu-0001", "02:bb:00:00:00:01")
    with snmpd.running(tmp_path / "snmpd", objects) as running:
        yield running
