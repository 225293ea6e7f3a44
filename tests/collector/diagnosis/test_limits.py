"""Devices that report a fault by one quantity above its limit."""

from __future__ import annotations

import numpy as np
import pytest
from support.drawn_cluster import DrawnCluster, DrawnFeed

from railscope_collector.diagnosis.findings import Cause
from railscope_collector.diagnosis.incident_classes import CLASSES
from railscope_collector.diagnosis.quantities import (
    LIMITS,
    DeviceKind,
    Limit,
    Quantity,
    QuantityKind,
)

SLOTS, ONSET = 40, 20
PLACES = {limit.quantity.name: 48 * number + 9 for number, limit in enumerate(LIMITS)}
"""Position of the device that is above a limit: each in a pod of its own."""


@pytest.fixture(scope="module")
def found() -> dict[Cause, tuple[str, str, str]]:
    """Class, severity and signal of the incidents of a cluster with a device above each limit."""
    cluster = DrawnCluster(9, len(LIMITS), 6, benign=False)
    feed = DrawnFeed(cluster, SLOTS)
    for slot in range(SLOTS):
        row = cluster.draw()
        for limit in LIMITS:
            values = np.full((cluster.nodes, 8), limit.above / 4)
            if slot >= ONSET:
                values.flat[PLACES[limit.quantity.name]] = 2 * limit.above + 1
            row.limited[limit.quantity.name] = values
        feed.evaluate(slot, row)
    incidents = feed.diagnosis.tracker.incidents
    assert len(incidents) == len(LIMITS)
    return {
        each.cause: (each.class_name, str(each.severity), each.evidence[0].signal)
        for each in incidents
    }


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.quantity.name)
def test_a_device_above_a_limit_is_an_incident(
    limit: Limit, found: dict[Cause, tuple[str, str, str]]
) -> None:
    name = limit.quantity.name
    severity = str(CLASSES[limit.incident].severity)
    cause = Cause(limit.quantity.device.value, PLACES[name])
    assert found[cause] == (limit.incident, severity, name)


def test_a_limit_is_of_a_device_with_an_identity() -> None:
    mount = Quantity("x", DeviceKind.MOUNT, QuantityKind.LAST, "railscope_x")
    with pytest.raises(ValueError, match="limit of x: mount: expected nic or gpu"):
        Limit("row_remap", mount, 0.0, "", "")
    misspelt = Quantity("x", DeviceKind.GPU, QuantityKind.LAST, "railscope_gpu_row_remap_pendin")
    expected = "limit of x: unknown metric railscope_gpu_row_remap_pendin: .* did you mean railscope_gpu_row_remap_pending"
    with pytest.raises(ValueError, match=expected):
        Limit("row_remap", misspelt, 0.0, "", "")
