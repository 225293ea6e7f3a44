"""Usage evidence in this database, read so that the evidence of each node is read once."""

from __future__ import annotations

from dataclasses import dataclass, field

from collector.evidence.assemble import Files, Known
from collector.evidence.store import EvidenceStore, Loaded


@dataclass(slots=True)
class KeptEvidence:
    """Implementation of `collector.billing.completeness.EvidenceStore`. Raises LedgerError.

    GPUs are listed so that those of a node are consecutive; the evidence of a node is cached for
    its next GPU.
    """

    store: EvidenceStore
    _homes: dict[str, dict[str, int]] = field(default_factory=dict)
    _files: Files | None = None
    _of: tuple[frozenset[str], int, int] | None = None
    _loaded: Loaded | None = None

    @property
    def empty(self) -> bool:
        """True if the database has never contained evidence."""
        return not self.store.homes()

    def gpus(self, start_ns: int, end_ns: int) -> list[str]:  # noqa: ARG002 - a GPU stays where it was
        """GPUs first seen before the end, grouped by node; each is assumed to stay on its node."""
        self._homes, self._files, self._of = self.store.homes(), self.store.files(), None
        seen = [gpu for gpu, homes in self._homes.items() if min(homes.values()) < end_ns]
        return sorted(seen, key=lambda gpu: (sorted(self._homes[gpu]), gpu))

    def evidence(self, gpu: str, start_ns: int, end_ns: int) -> Known:
        """Evidence of a GPU in a window, with everything that affects it."""
        if self._files is None or gpu not in self._homes:
            return self.store.evidence(gpu, start_ns, end_ns)
        nodes = frozenset(self._homes[gpu])
        if self._loaded is None or self._of != (nodes, start_ns, end_ns):
            together = [one for one, homes in self._homes.items() if nodes == homes.keys()]
            homes_of = {one: set(nodes) for one in together}
            self._loaded = self.store.load(sorted(together), homes_of, start_ns, end_ns)
            self._of = (nodes, start_ns, end_ns)
        return self._loaded.known(gpu, self._files)
