"""The ledger of one collector that received everything, to compare the ledger of several collectors with.

Its frame log is made of the frame logs of the others: each envelope as it was received, with the time of its
receipt, in the order of receipt. A collector that starts with it de-duplicates, stores and meters as after any
other restart.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from collector.framelog import segment_files
from collector.ledger.ledger_store import Ledger, Revision

_PARTS = ("entries", "shares", "claims", "overlaps", "clock_suspect")


def copy_frames(state: Path, to: Path) -> None:
    """Copy frame log and schemas of a collector that is not running. Blocking."""
    for name in ("frames", "schemas"):
        shutil.copytree(state / name, to / name)


def merge_frames(sources: Iterable[Path], to: Path) -> int:
    """Write the state directory of one collector with the frames of all; return the number of envelopes. Blocking."""
    (to / "frames").mkdir(parents=True)
    (to / "schemas").mkdir()
    records: list[segment_files.FrameRecord] = []
    for source in sources:
        records += _read_records(source / "frames")
        for schema in (source / "schemas").iterdir():
            shutil.copy(schema, to / "schemas" / schema.name)
    records.sort(key=lambda record: record.received_wall_ns)
    descriptor, marker = segment_files.start_segment(to / "frames", 1)
    with os.fdopen(descriptor, "wb") as segment:
        for record in records:
            payload = segment_files.encode_record(record)
            segment.write(segment_files.frame_payload(marker, payload))
    return len(records)


def _read_records(directory: Path) -> Iterator[segment_files.FrameRecord]:
    stats = segment_files.FrameLogStats()
    for number in segment_files.segment_numbers(directory):
        path = segment_files.segment_path(directory, number)
        for _, record in segment_files.read_segment(path, stats):
            yield record


def ledger_lines(ledger: Ledger, day: int) -> list[bytes]:
    """Return all rows of the newest revisions of a day as JSON, sorted. Blocking.

    Time and input of the computation are not included: each collector divides facts in its own way.
    """
    revisions = ledger.revisions(ledger.newest(day, day + 1))
    return sorted(line for revision in revisions for line in _lines(revision))


def _lines(revision: Revision) -> Iterator[bytes]:
    tiling = revision.tiling
    key = {"gpu": tiling.gpu, "day": tiling.day, "sku": tiling.sku}
    for part in _PARTS:
        for row in getattr(tiling, part):
            content = {**key, "part": part, part: msgspec.to_builtins(row, enc_hook=str)}
            yield msgspec.json.encode(content, order="sorted")
