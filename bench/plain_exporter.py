"""A minimal exporter: opens every file at every scrape, with prometheus_client objects and server.

Run as `python -m bench.plain_exporter ROOT PORT`.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from bench.harness import HOST


class CounterFileCollector(Collector):
    """All counter files below a root."""

    def __init__(self, root: Path) -> None:
        self._base = root / "sys/class/infiniband"

    def collect(self) -> Iterator[Metric]:
        """Read all files."""
        families: dict[str, CounterMetricFamily] = {}
        for port in sorted(self._base.glob("*/ports/*")):
            device = port.parts[-3]
            for directory in ("counters", "hw_counters"):
                for file in sorted((port / directory).iterdir()):
                    name = f"infiniband_{file.name.lower()}"
                    family = families.get(name)
                    if family is None:
                        labels = ["device", "port"]
                        family = CounterMetricFamily(name, f"File {file.name}.", labels=labels)
                        families[name] = family
                    family.add_metric([device, port.name], float(file.read_text()))
        yield from families.values()


def main() -> None:
    """Serve until terminated."""
    registry = CollectorRegistry()
    registry.register(CounterFileCollector(Path(sys.argv[1])))
    start_http_server(int(sys.argv[2]), HOST, registry)
    threading.Event().wait()


if __name__ == "__main__":
    main()
