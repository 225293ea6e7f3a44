"""State of release 0.3.0 in its files: read once, and kept for a week."""

from __future__ import annotations

import hashlib
import json
import struct
import time
import zlib
from pathlib import Path

import msgspec
import pytest
from support.checkpoints import checkpoint_of, facts_of, resume_from, state_reader
from support.story import NodeReporter, accept, at, core_in, gpus_of

from railscope.claim_terms import ClaimAuthority
from railscope.timestamps import DAY_NS
from railscope.wire import SentAt
from railscope_collector.evidence.claim_events import ReportedClaim, ReportedEnd
from railscope_collector.evidence.node_intervals import EvidenceInterval, encode_interval
from railscope_collector.evidence.open_quarters import GpuPlace
from railscope_collector.framelog.log_follower import LOG_START, LogPosition
from railscope_collector.framelog.segment_files import FrameRecord, encode_record
from railscope_collector.state.collector_state import CollectorState
from railscope_collector.state.former_files import read_former_files
from railscope_collector.state_store import StateStore

INTERVAL = EvidenceInterval("n1", "boot-1", 7, 0, 1)


def framed(payload: bytes) -> bytes:
    return struct.pack("<II", len(payload), zlib.crc32(payload)) + payload


def former_directory(directory: Path, core: CollectorState) -> None:
    """Write the files as release 0.3.0 did."""
    parts = [
        msgspec.msgpack.encode(["Beginning", 3]),
        *checkpoint_of(core),
        msgspec.msgpack.encode(["Ending"]),
    ]
    content = b"railscope checkpoint 1\n" + b"".join(map(framed, parts))
    (directory / "checkpoint").write_bytes(content)
    (directory / "waiting").mkdir()
    body = msgspec.msgpack.encode([("n1", zlib.compress(encode_interval(INTERVAL)))])
    digest = hashlib.sha256(body).hexdigest().encode()
    (directory / "waiting" / "0000000001.evidence").write_bytes(digest + b"\n" + body)
    (directory / "quarantine").mkdir()
    record = encode_record(FrameRecord("n2", 5, SentAt(1, 2, "b"), b"body"))
    (directory / "quarantine" / "0000000002-0123456789abcdef.record").write_bytes(record)
    (directory / "observed").write_bytes(b"copy of the audit log")
    manifest = {"sealed": {"2": 77}, "checkpoint": 3, "clock": True}
    (directory / "frames.manifest").write_text(json.dumps(manifest))
    (directory / "frames.extent").write_bytes(b"%010d %020d\n" % (3, 0))


def opened(directory: Path) -> StateStore:
    store = StateStore(directory)
    store.open()
    return store


@pytest.mark.parametrize("is_killed", [False, True])
def test_the_files_are_read_once_and_kept_for_a_week(tmp_path: Path, *, is_killed: bool):
    core = core_in(tmp_path / "schemas")
    accept(core, NodeReporter().envelopes_of(gpus_of("GPU-0"), range(0, 101, 10)))
    former_directory(tmp_path, core)
    store = opened(tmp_path)
    assert read_former_files(store) == {}
    if is_killed:  # before one of them was renamed
        (tmp_path / "waiting.before").rename(tmp_path / "waiting")
        assert read_former_files(store) == {}
    assert store.problem == ""
    reader = state_reader(core_in(tmp_path / "schemas"), store)
    reader.frames.directory.mkdir()
    reader.restore()
    assert reader.snapshots.position == LogPosition(3)
    assert facts_of(reader.core) == facts_of(core)
    assert reader.core.received == core.received
    assert [row.fact for row in reader.waiting.read(0)] == [INTERVAL]
    assert (reader.quarantined, store.document("observed")) == (1, b"copy of the audit log")
    kept = {path.name for path in tmp_path.glob("*.before")}
    assert kept == {f"{name}.before" for name in ("checkpoint", "waiting", "quarantine", "observed", "frames.manifest")}  # fmt: skip
    read_former_files(store, lambda: time.time_ns() + 8 * DAY_NS)
    assert not list(tmp_path.glob("*.before"))
    store.close()


def test_a_damaged_checkpoint_is_stated_and_the_segments_are_read(tmp_path: Path):
    core = core_in(tmp_path / "schemas")
    former_directory(tmp_path, core)
    content = (tmp_path / "checkpoint").read_bytes()
    (tmp_path / "checkpoint").write_bytes(content[:-1])
    store = opened(tmp_path)
    assert set(read_former_files(store)) == {"checkpoint"}
    reader = state_reader(core, store)
    reader.snapshots.restore()
    assert reader.snapshots.position == LOG_START
    store.close()


def test_claims_and_places_of_release_0_3_0_are_those_of_its_last_boot(tmp_path: Path):
    def claim(name: str, boot: str, second: int) -> ReportedClaim:
        return ReportedClaim(at(second), "GPU-0", "n1", name, ClaimAuthority.SCHEDULER, boot=boot, reported_ns=at(second))  # fmt: skip

    claims = [claim("a", "boot-1", 5), claim("b", "boot-2", 105), claim("c", "boot-2", 105)]
    memory = {
        "presences": {
            f"n1 {boot}": ("n1", boot, at(second), [(at(second), at(second + 60))], 0)
            for boot, second in (("boot-2", 100), ("boot-1", 0))
        },
        "told": claims,
        "ended": [ReportedEnd(at(120), "GPU-0", "n1", "c")],
    }
    core = core_in(tmp_path)
    resume_from(core, [msgspec.msgpack.encode(["GpuPart", "GPU-0", memory])])
    assert [each.id for each in core.evidence.claims.on_gpu("n1", "GPU-0")] == ["b"]
    assert core.evidence.places == {"GPU-0": GpuPlace("n1", at(160))}
