"""Models of GPUs, by GPU or by node, and their CSV file with the columns node, gpu, model.

`gpu` is the PCI address, or empty for all GPUs of the node; `model` is the name used in prices. A GPU's own
row takes precedence over that of its node.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from railscope_collector.files.watched_file import FileError, read_rows
from railscope_collector.jobs.job_list import ListedGpu, pci_address

MODELS_HEADER = ("node", "gpu", "model")


@dataclass(frozen=True, slots=True)
class GpuModels:
    """Models by GPU, and by node; `default` if neither these nor a job list name one."""

    by_gpu: dict[ListedGpu, str] = field(default_factory=dict)
    by_node: dict[str, str] = field(default_factory=dict)
    default: str = ""

    def model(self, gpu: ListedGpu, listed: str) -> str:
        """The model of a GPU; `listed` is its model in the list, empty without one."""
        return self.by_gpu.get(gpu) or self.unnamed_model(gpu.node, listed)

    def unnamed_model(self, node: str, listed: str) -> str:
        """The model of an unnamed GPU of a node."""
        return self.by_node.get(node) or listed or self.default


def parse_models(text: str, default: str = "") -> GpuModels:
    """Parse models from the text of a file. Raises FileError that names the line."""
    models = GpuModels(default=default)
    for number, (node, gpu, model) in read_rows(text, MODELS_HEADER):
        location = f"line {number}"
        if not node or not model:
            message = (
                f"invalid GPU model: {location}: node {node!r}, model {model!r}: expected both"
            )
            raise FileError(message)
        if gpu:
            key = ListedGpu(node, pci_address(gpu) or gpu)
            before = models.by_gpu.setdefault(key, model)
        else:
            before = models.by_node.setdefault(node, model)
        if before != model:
            message = (
                f"conflicting GPU models: {location}: {model!r} of {node} {gpu}".rstrip()
                + f": expected {before!r} as in an earlier line"
            )
            raise FileError(message)
    return models
