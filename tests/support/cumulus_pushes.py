"""Pushes of a Cumulus switch: every number a gauge with a floating-point value, as documented."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from google.protobuf import json_format
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

PREFIX = "nvswitch_interface_"
START_NS = 1_722_458_198_491_000_000


class Pushed(NamedTuple):
    """One value of a switch."""

    name: str
    value: float
    port: str = "swp1"
    attributes: tuple[tuple[str, str], ...] = ()
    timestamp_ns: int = START_NS


def priority(name: str, value: float, number: int = 3, **more: Any) -> Pushed:
    return Pushed(name, value, attributes=(("sp", str(number)),), **more)


def queue(name: str, value: float, number: int = 3, **more: Any) -> Pushed:
    return Pushed(name, value, attributes=(("tc", str(number)),), **more)


def neighbour(port: str, **facts: str) -> Pushed:
    """Return a neighbour by LLDP, with attributes of its own."""
    attributes = {"chassis_id_type": "mac", "port_id_type": "mac", "system_description": "Linux"}
    return Pushed("nvswitch_lldp_neighbor_info", 1, port, tuple((attributes | facts).items()))


def _attributes(pairs: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in pairs]


def document(values: Iterable[Pushed], host: str = "leaf-08") -> dict[str, Any]:
    """Return a request as JSON of protobuf."""
    metrics = [
        {
            "name": pushed.name if pushed.name.startswith("nvswitch_") else PREFIX + pushed.name,
            "gauge": {
                "dataPoints": [
                    {
                        "attributes": _attributes((("interface", pushed.port), *pushed.attributes)),
                        "timeUnixNano": str(pushed.timestamp_ns),
                        "asDouble": pushed.value,
                    }
                ]
            },
        }
        for pushed in values
    ]
    resource = {"attributes": _attributes([("net.host.name", host)])}
    return {"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": metrics}]}]}


def body(values: Iterable[Pushed], host: str = "leaf-08") -> bytes:
    request = json_format.ParseDict(document(values, host), ExportMetricsServiceRequest())
    return request.SerializeToString()
