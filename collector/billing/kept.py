"""Evidence as the collectors of this database keep it, read so that each node's is read once."""

from __future__ import annotations

from dataclasses import dataclass, field

from collector.evidence.assemble import Files, Known
from collector.evidence.store import EvidenceStore, Loaded


@dataclass(slots=True)
class KeptEvidence:
    """What `collector.billing.completeness.EvidenceStore` asks for. Raises LedgerError.

    GPUs are named in such an order that those of a node follow one another; what was read of their
    node is kept for the next one.
    """

    store: EvidenceStore
    _homes: dict[str, dict[str, int]] = field(default_factory=dict)
    _files: Files | None = None
    _of: tuple[frozenset[str], int, int] | None = None
    _loaded: Loaded | None = None

    @property
    def empty(self) -> bool:
        """Whether nothing was ever kept."""
        return not self.store.homes()

    def gpus(self, start_ns: int, end_ns: int) -> list[str]:  # noqa: ARG002 - a GPU stays where it was
        """GPUs that were seen before the end: they are where they were seen last."""
        self._homes, self._files, self._of = self.store.homes(), self.store.files(), None
        seen = [gpu for gpu, homes in self._homes.items() if min(homes.values()) < end_ns]
        return sorted(seen, key=lambda gpu: (sorted(self._homes[gpu]), gpu))

    def evidence(self, gpu: str, start_ns: int, end_ns: int) -> Known:
        """What is known of a GPU in a window, with what has a bearing on it."""
        if self._files is None or gpu not in self._homes:
            return self.store.evidence(gpu, start_ns, end_ns)
        nodes = frozenset(self._homes[gpu])
        if self._loaded is None or self._of != (nodes, start_ns, end_ns):
            together = [one for one, homes in self._homes.items() if nodes == homes.keys()]
            homes_of = {one: set(nodes) for one in together}
            self._loaded = self.store.load(sorted(together), homes_of, start_ns, end_ns)
            self._of = (nodes, start_ns, end_ns)
        return self._loaded.known(gpu, self._files)
