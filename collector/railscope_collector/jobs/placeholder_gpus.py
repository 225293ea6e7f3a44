"""Numbered placeholders for the GPUs that a job list only counts."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from railscope_collector.jobs import gpu_models, job_list

STAND_IN = "unnamed"
"""Node of GPUs that a list does not name."""
# Six digits or more: a PCI address ends in `.0`, so neither can be taken for the other.
_NUMBERED = re.compile(r"[:/][0-9]{6,}$", re.ASCII)


class PlaceholderGpus(NamedTuple):
    """Jobs in order, with a numbered GPU in place of each GPU that is only counted."""

    jobs: list[job_list.ListedJob]
    models: dict[job_list.ListedGpu, str]
    """Model of each numbered GPU, empty if unknown."""


def number_placeholders(
    jobs: Iterable[job_list.ListedJob], source: str, models: gpu_models.GpuModels
) -> PlaceholderGpus:
    """Number the GPUs that jobs of a source only count, by node and model, as placeholders.

    There are as many as were held at once. The time per tenant does not depend on the assignment of
    placeholders to jobs.
    """
    pools: dict[tuple[str, str], _PlaceholderPool] = defaultdict(_PlaceholderPool)
    placeholders = PlaceholderGpus([], {})
    # By start, so that the placeholders are as many as were held at once.
    for job in sorted(jobs):
        gpus = [(gpu, job.part_on(gpu)) for gpu in job.gpus]
        rest: list[job_list.UnnamedGpus] = []
        for request in job.unplaced:
            if not request.gpus:
                rest.append(request)
                continue
            node = _node(request.node)
            model = models.unnamed_model(node, request.model or job.model)
            name = "".join(f"{prefix}:" for prefix in (source, model) if prefix)
            for number, part in pools[node, model].take(request, job.start_ns, job.end_ns):
                gpus.append((gpu := job_list.ListedGpu(node, f"{name}{number:06}"), part))
                placeholders.models[gpu] = model
        gpus.sort()
        parts = tuple(part for _, part in gpus)
        placeholders.jobs.append(
            msgspec.structs.replace(
                job,
                gpus=tuple(gpu for gpu, _ in gpus),
                parts=() if all(part == job_list.WHOLE_GPU_PART for part in parts) else parts,
                unplaced=tuple(rest),
            )
        )
    return placeholders


def is_placeholder(gpu: str) -> bool:
    """True for a numbered placeholder; all other GPUs of lists are named by PCI address, `...:00.0`."""
    return _NUMBERED.search(gpu) is not None


class _PlaceholderPool:
    """Stand-ins of one node and model, and the parts of each that are held."""

    def __init__(self) -> None:
        self._placeholder_count = 0
        self._free: list[int] = []
        self._ends: list[tuple[int, int, job_list.ListedGpuPart]] = []
        self._parts_in_use: dict[int, list[job_list.ListedGpuPart]] = {}

    def take(
        self, request: job_list.UnnamedGpus, start_ns: int, end_ns: int
    ) -> list[tuple[int, job_list.ListedGpuPart]]:
        """Assign GPUs with enough free capacity from a start on, each with the assigned part.

        Parts are placed on partly held GPUs with enough free capacity; lowest numbers first.
        """
        while self._ends and self._ends[0][0] <= start_ns:
            _, number, part = heappop(self._ends)
            self._parts_in_use[number].remove(part)
            if not self._parts_in_use[number]:
                del self._parts_in_use[number]
                heappush(self._free, number)
        # Shares first fill partly held GPUs: else each would need a GPU of its own, and the capacity would be too
        # large.
        gaps = self._gaps(request) if request.share != 1 else {}
        while len(gaps) < request.gpus:
            if not self._free:
                self._placeholder_count += 1
                heappush(self._free, self._placeholder_count)
            gaps[heappop(self._free)] = Fraction(0)
        taken = [
            (number, job_list.ListedGpuPart(low, low + request.share))
            for number, low in sorted(gaps.items())
        ]
        for number, part in taken:
            self._parts_in_use.setdefault(number, []).append(part)
            heappush(self._ends, (end_ns, number, part))
        return taken

    def _gaps(self, request: job_list.UnnamedGpus) -> dict[int, Fraction]:
        """Partly held GPUs with enough free capacity, with the start of the gap."""
        gaps: dict[int, Fraction] = {}
        for number in sorted(self._parts_in_use):
            if len(gaps) == request.gpus:
                break
            low = _lowest_gap(self._parts_in_use[number], request.share)
            if low is not None:
                gaps[number] = low
        return gaps


def _lowest_gap(parts: Sequence[job_list.ListedGpuPart], share: Fraction) -> Fraction | None:
    """Start of the first gap of a size; None if there is none."""
    low = Fraction(0)
    for part in sorted(parts):
        if part.low - low >= share:
            return low
        low = max(low, part.high)
    return low if 1 - low >= share else None


def _node(node: str) -> str:
    """The node in the list, `unnamed` if it is empty or a list of nodes."""
    return node if node and not set(node) & set("[,") else STAND_IN
