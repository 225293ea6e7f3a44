"""Models of GPUs, by GPU or by node, from a file.

CSV with the columns node, gpu, model. `gpu` is the PCI address, or empty for all GPUs of the node;
`model` is the name used in prices. A GPU's own row takes precedence over that of its node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from collector.files.watched import FileError, rows
from collector.jobs.job import Gpu, pci_address

HEADER = ("node", "gpu", "model")


@dataclass(frozen=True, slots=True)
class Models:
    """Models by GPU, and by node; `default` if neither these nor a job list name one."""

    by_gpu: dict[Gpu, str] = field(default_factory=dict)
    by_node: dict[str, str] = field(default_factory=dict)
    default: str = ""

    def of(self, gpu: Gpu, listed: str) -> str:
        """The model of a GPU; `listed` is its model in the list, empty without one."""
        return self.by_gpu.get(gpu) or self.on(gpu.node, listed)

    def on(self, node: str, listed: str) -> str:
        """The model of an unnamed GPU of a node."""
        return self.by_node.get(node) or listed or self.default


def parse(text: str, default: str = "") -> Models:
    """Parse models from the text of a file. Raises FileError that names the line."""
    found = Models(default=default)
    for number, (node, gpu, model) in rows(text, HEADER):
        where = f"line {number}"
        if not node or not model:
            message = f"{where}: node {node!r}, model {model!r}: expected both"
            raise FileError(message)
        if gpu:
            key = Gpu(node, pci_address(gpu) or gpu)
            before = found.by_gpu.setdefault(key, model)
        else:
            before = found.by_node.setdefault(node, model)
        if before != model:
            message = f"{where}: model {model!r}: {node} {gpu}".rstrip() + f" has model {before!r}"
            raise FileError(message)
    return found
