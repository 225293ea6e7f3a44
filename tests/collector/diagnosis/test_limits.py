"""Devices that report a fault by one quantity above its limit."""

from __future__ import annotations

import numpy as np
import pytest
from support.drawn_cluster import DrawnCluster, Row
from support.drawn_readings import incidents_of

from railscope_collector.diagnosis.findings import Cause
from railscope_collector.diagnosis.quantities import (
    LIMITS,
    DeviceKind,
    Limit,
    Quantity,
    QuantityKind,
)

POSITION = 21


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.quantity.name)
def test_a_device_above_a_limit_is_an_incident(limit: Limit) -> None:
    def exceed(cluster: DrawnCluster, row: Row, since: int) -> None:
        values = np.full((cluster.nodes, 8), limit.above / 4)
        if since >= 0:
            values.flat[POSITION] = 2 * limit.above + 1
        row.limited[limit.quantity.name] = values

    found = incidents_of(exceed)
    cause = Cause(limit.quantity.device.value, POSITION)
    assert [(each.class_name, each.cause) for each in found] == [(limit.incident, cause)]
    assert [each.evidence[0].signal for each in found] == [limit.quantity.name]
    assert {each.severity for each in found} == {found[0].incident_class.severity}


@pytest.mark.parametrize(("second", "causes"), [(POSITION, 1), (POSITION + 1, 2)])
def test_a_fault_that_returns_at_its_device_is_the_same_incident(second: int, causes: int) -> None:
    """An uncorrectable error is counted once: the same memory fails again, or that of another GPU of the node."""

    def fail(cluster: DrawnCluster, row: Row, since: int) -> None:
        errors = np.zeros((cluster.nodes, 8))
        if since in range(3):
            errors.flat[POSITION] = 1
        elif since in range(40, 43):
            errors.flat[second] = 1
        row.limited["uncorrected_errors"] = errors

    assert len(incidents_of(fail, 100)) == causes


def test_a_limit_is_of_a_device_with_an_identity() -> None:
    mount = Quantity("x", DeviceKind.MOUNT, QuantityKind.LAST, "railscope_x")
    with pytest.raises(ValueError, match="limit of x: mount: expected nic or gpu"):
        Limit("row_remap", mount, 0.0, "", "")
    misspelt = Quantity("x", DeviceKind.GPU, QuantityKind.LAST, "railscope_gpu_row_remap_pendin")
    expected = "limit of x: unknown metric railscope_gpu_row_remap_pendin: .* did you mean railscope_gpu_row_remap_pending"
    with pytest.raises(ValueError, match=expected):
        Limit("row_remap", misspelt, 0.0, "", "")
