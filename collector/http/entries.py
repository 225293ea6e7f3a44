"""The audit log as those may read it who are not on the collector's machine.

Only what is signed is shown, each record with the proof that the log holds it. A record is a
tenant's where it names that tenant and no other:

    data.tenant, or any key of `data` that ends in `_tenant`     the tenants it names
    actor `credential` with the label `tenant/...`               the tenant of the credential
    any key of `data` that begins with `other`                   somebody else, whoever it is

A record cannot be shown in part and proven at once. Where a reference in it could name somebody
else, a tenant gets the hash of the record, the proof of it, and the record without its references.
"""

from __future__ import annotations

import asyncio
import base64
import threading
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import structlog

from collector.access.credential import Role
from collector.audit.proof import make_proof
from collector.audit.tiles import WIDTH, Tiles
from railscope.audit.checkpoint import read_checkpoint
from railscope.audit.merkle import consistency_proof, inclusion_proof, leaf_hash
from railscope.audit.note import PublicKey, read_note
from railscope.audit.record import Record, decode

MAX_SHOWN = 100
"""Entries in one answer."""
MAX_READ = 20_000
"""Records that one answer may have to wait for."""
INDEXED_AT_ONCE = 2000
_OWN_REFERENCES = ("frame/", "entry/", "outbox/", "outbox-row/", "record/")
"""Identities that name no other tenant: of frames, ledger entries, rows of the outbox, records."""
_SOMEBODY_ELSE = "\0"
"""Stands for who is not named by the name of a tenant."""
_INDEX_EVERY_SECONDS = 5.0
_PAUSE_SECONDS = 0.05


class NotYetError(RuntimeError):
    """More has been recorded than could be read for this answer; ask again."""


log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which entries are asked for."""

    first: int = 0
    most: int = MAX_SHOWN
    tenant: str | None = None
    """None for those of everyone."""
    of_tenant_only: bool = False
    """Whether it is that tenant who asks, so that nothing else may be in the answer."""


@dataclass(slots=True)
class Entries:
    """Reads the signed part of a log that another part of this process writes. Blocking."""

    directory: Path
    key: PublicKey
    max_read: int = MAX_READ
    indexed_at_once: int = INDEXED_AT_ONCE
    _read: int = 0
    """Records that the index knows."""
    _of: dict[str, array[int]] = field(default_factory=dict)
    """Sequences of each tenant's records, rising."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    problem: str = ""
    """Why the log could not be read the last time; empty where it could."""

    async def run(self) -> None:
        """Keep the index up to date, a little at a time, until cancelled."""
        while True:
            everything = await asyncio.to_thread(self._index)
            await asyncio.sleep(_INDEX_EVERY_SECONDS if everything else _PAUSE_SECONDS)

    def checkpoint(self) -> tuple[str, Tiles]:
        """The newest checkpoint and the tiles under it.

        Raises FileNotFoundError before the first, OSError, NoteError.
        """
        note = read_note(self.directory / "checkpoint")
        return note, Tiles(self.directory, read_checkpoint(note, self.key).tree.size)

    def page(self, wanted: Wanted) -> dict[str, Any]:
        """Entries from an index on, with their proofs. Raises NotYetError, OSError, ValueError."""
        note, tiles = self.checkpoint()
        sequences = self._sequences(tiles, wanted)
        shown = [self._shown(tiles, at, wanted) for at in sequences[: wanted.most]]
        following = sequences[wanted.most] if len(sequences) > wanted.most else None
        return {"checkpoint": note, "size": tiles.size, "entries": shown, "next": following}

    def proof(self, index: int, tenant: str | None) -> str | None:
        """One record with its proof, as `railscope audit check-proof` takes it.

        None where there is no such record, or none that this tenant may see whole. Raises
        NotYetError, OSError, ValueError.
        """
        note, tiles = self.checkpoint()
        if index >= tiles.size:
            return None
        if tenant is not None:
            own = self._sequences(tiles, Wanted(index, 1, tenant))
            if not own or own[0] != index or _withheld(decode(tiles.record(index))):
                return None
        return make_proof(tiles, index, note)

    def consistency(self, old: int) -> dict[str, Any] | None:
        """The proof that the log of `old` records is the beginning of the present one.

        None where the present one is smaller. Raises OSError, ValueError.
        """
        note, tiles = self.checkpoint()
        if old > tiles.size:
            return None
        proof = consistency_proof(tiles.node, old, tiles.size)
        return {"old": old, "size": tiles.size, "proof": _texts(proof), "checkpoint": note}

    def _sequences(self, tiles: Tiles, wanted: Wanted) -> Sequence[int]:
        """Those asked for, one more than are shown."""
        if wanted.tenant is None:
            return range(wanted.first, min(tiles.size, wanted.first + wanted.most + 1))
        with self._lock:
            self._catch_up(tiles, self.max_read)
            found = self._of.get(wanted.tenant, array("q"))
            # The index may be ahead of the checkpoint that this answer shows.
            begin, end = (bisect_left(found, at) for at in (wanted.first, tiles.size))
            return found[begin : min(end, begin + wanted.most + 1)]

    def _catch_up(self, tiles: Tiles, most: int) -> None:
        """Index so much of what has been signed since. Raises NotYetError where more is left."""
        end = min(tiles.size, self._read + most)
        for raw in _records(tiles, self._read, end):
            # Most records are nobody's, and need no more than this look.
            tenant = sole_tenant(decode(raw)) if b"tenant" in raw else ""
            if tenant:
                self._of.setdefault(tenant, array("q")).append(self._read)
            self._read += 1
        if self._read < tiles.size:
            message = f"{tiles.size - self._read} records are still to be read"
            raise NotYetError(message)

    def _index(self) -> bool:
        """Index a little; whether that was all. What cannot be read now is tried again."""
        try:
            _, tiles = self.checkpoint()
            with self._lock:
                self._catch_up(tiles, self.indexed_at_once)
        except NotYetError:
            return False
        except FileNotFoundError:
            return True
        except (OSError, ValueError) as error:
            if not self.problem:
                log.error("audit_index_stopped", directory=str(self.directory), problem=str(error),
                          advice="run `railscope audit verify`")  # fmt: skip
            self.problem = str(error)
            return True
        self.problem = ""
        return True

    def _shown(self, tiles: Tiles, index: int, wanted: Wanted) -> dict[str, Any]:
        raw = tiles.record(index)
        entry: dict[str, Any] = {
            "index": index,
            "leaf": _text(leaf_hash(raw)),
            "proof": _texts(inclusion_proof(tiles.node, index, tiles.size)),
        }
        record = decode(raw)
        if wanted.of_tenant_only and _withheld(record):
            entry["record"] = msgspec.to_builtins(msgspec.structs.replace(record, ref=[]))
            entry["withheld"] = ["ref"]
        else:
            entry["record"] = msgspec.Raw(raw)
        return entry


def sole_tenant(record: Record) -> str:
    """The tenant whose record it is: the only one it names. Empty for nobody's, or several's."""
    named = set(_named(record))
    return named.pop() if len(named) == 1 else ""


def _named(record: Record) -> Iterator[str]:
    actor = record.actor.id.split("/")
    if record.actor.kind == "credential" and actor[0] == Role.TENANT and len(actor) > 1:
        yield unquote(actor[1])
    yield from _in(record.data)


def _in(data: object) -> Iterator[str]:
    """Texts under keys that speak of tenants, however deep."""
    if not isinstance(data, dict):
        return
    for key, value in data.items():
        if key.startswith("other"):
            yield _SOMEBODY_ELSE
        if key in {"tenant", "tenants"} or key.endswith(("_tenant", "_tenants")):
            yield from _texts_in(value)
        else:
            yield from _in(value)


def _texts_in(value: object) -> Iterator[str]:
    if isinstance(value, str):
        if value:
            yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts_in(one)
    elif isinstance(value, dict):
        for key, one in value.items():
            yield key
            yield from _texts_in(one)


def _withheld(record: Record) -> bool:
    """Whether a reference could name somebody else: a claim's identity has its holder in it."""
    own = record.data.get("claim")
    return any(not ref.startswith(_OWN_REFERENCES) and ref != own for ref in record.ref)


def _records(tiles: Tiles, first: int, end: int) -> Iterator[bytes]:
    for tile in range(first // WIDTH, -(-end // WIDTH)):
        begin = tile * WIDTH
        yield from tiles.records(tile)[max(0, first - begin) : end - begin]


def _text(hashed: bytes) -> str:
    return base64.b64encode(hashed).decode()


def _texts(hashes: Sequence[bytes]) -> list[str]:
    return [_text(one) for one in hashes]
