"""Routes for agents as witnesses: the newest checkpoint, consistency proofs, cosignatures.

    GET  /v1/checkpoint                          the newest signed checkpoint, a signed note
    GET  /v1/checkpoint/key                      the public key, for agents that have none yet
    GET  /v1/checkpoint/consistency?from=M&to=N  the proof that M records begin N, base64, one per line
    POST /v1/checkpoint/cosignature              the node's checkpoint, cosigned: {"note", "key"}

A checkpoint is returned with the header `Railscope-Show: held` until the node has submitted the checkpoint
that it holds. An empty note means that it holds none. 409 means that this log never had that checkpoint.
"""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from http import HTTPStatus

import msgspec
import structlog
from aiohttp import web

from railscope import untrusted_text
from railscope.audit import log_checkpoint, merkle, record, signed_note
from railscope_collector.access.credentials import Credential
from railscope_collector.audit import LogWriteError, cosignatures, log_writer, signing_guard
from railscope_collector.audit.tables import LogDamagedError
from railscope_collector.http import HttpApiError
from railscope_collector.http.json_responses import json_error
from railscope_collector.http.route_table import RouteHandlers
from railscope_collector.ledger.database import UnusableLedgerError, call_database
from railscope_collector.ledger.record_draft import RecordDraft

PRESENT_HEADER = "Railscope-Show"
MAX_BYTES = 64 << 10
BODY_SECONDS = 30.0
SAVE_EVERY_SECONDS = 60.0
STOP_SECONDS = 5.0
"""Maximum wait for the database at the end."""
MIN_KEY_CHANGE_NS = 3_600_000_000_000
"""Minimum interval between two new keys of a node: each is a permanent record."""
_MAX_CACHED_PROOFS = 64

log = structlog.get_logger(__name__)


class KeyChangeLimitError(HttpApiError, RuntimeError):
    """A node changes its key too frequently; the message names the node."""


@dataclass(slots=True)
class WitnessApi:
    """Routes for authenticated agents; `run` saves the cosignatures."""

    audit: log_writer.AuditLog
    guard: signing_guard.SigningGuard
    witnesses: cosignatures.CosignatureStore
    _proofs: dict[tuple[int, int], str] = field(default_factory=dict)
    _key_changed_ns: dict[str, int] = field(default_factory=dict)
    """Time of each node's last key change, in nanoseconds since the epoch."""

    def handlers(self) -> RouteHandlers:
        """Return the handlers by route name."""
        return {
            "witness_checkpoint": self._checkpoint,
            "witness_key": self._key,
            "witness_consistency": self._consistency,
            "witness_cosignature": self._cosignature,
        }

    async def run(self) -> None:
        """Save the cosignatures periodically and at the end."""
        try:
            while True:
                await asyncio.sleep(SAVE_EVERY_SECONDS)
                await self._save()
        finally:
            saving = asyncio.create_task(self._save())
            await asyncio.wait({saving}, timeout=STOP_SECONDS)

    async def _save(self) -> None:
        try:
            await call_database(self.witnesses.read)
            await call_database(self.witnesses.save)
        except UnusableLedgerError as error:
            log.error("cosignatures_write_failed", problem=str(error))

    async def _checkpoint(self, _: web.Request, credential: Credential) -> web.Response:
        has_submitted = credential.name in self.guard.submitters
        headers = {} if has_submitted else {PRESENT_HEADER: "held"}
        try:
            await self.audit.follow_others()
        except (LogWriteError, UnusableLedgerError, OSError) as error:
            # Not 404: an agent that holds a checkpoint would report that the log was emptied.
            log.error("checkpoint_read_failed", problem=str(error))
            return json_error(HTTPStatus.SERVICE_UNAVAILABLE, "cannot read the log")
        note = self.audit.note
        if not note:
            text = f"{log_checkpoint.NOTHING_SIGNED}\n"
            return web.Response(status=HTTPStatus.NOT_FOUND, text=text, headers=headers)
        return web.Response(text=note, headers=headers)

    async def _key(self, _: web.Request, __: Credential) -> web.Response:
        return web.Response(text=f"{self.audit.signer.public}\n")

    async def _consistency(self, request: web.Request, _: Credential) -> web.Response:
        sizes = [request.query.get(name, "") for name in ("from", "to")]
        signed = self.audit.signed.size
        if not all(log_checkpoint.SIZE.fullmatch(text) for text in sizes):
            text = "invalid from or to: expected numbers of records"
            return json_error(HTTPStatus.BAD_REQUEST, text)
        old, new = (int(text) for text in sizes)
        if not old <= new <= signed:
            text = f"no consistency proof from {old} to {new}: the log has {signed} signed records"
            return json_error(HTTPStatus.NOT_FOUND, text)
        try:
            return web.Response(text=await call_database(self._proof, old, new))
        except (LogDamagedError, UnusableLedgerError) as error:
            log.error("consistency_proof_failed", problem=str(error))
            return json_error(HTTPStatus.SERVICE_UNAVAILABLE, "cannot read the log")

    def _proof(self, old: int, new: int) -> str:
        cached = self._proofs.get((old, new))
        if cached is not None:
            return cached
        with self.audit.read() as tree:
            path = merkle.consistency_proof(tree.node, old, new)
        text = "".join(f"{base64.b64encode(hashed).decode()}\n" for hashed in path)
        # Agents ask for the same few proofs at about the same time; old ones are not needed again.
        if len(self._proofs) >= _MAX_CACHED_PROOFS:
            self._proofs.clear()
        self._proofs[old, new] = text
        return text

    async def _cosignature(self, request: web.Request, credential: Credential) -> web.Response:
        # Without a length, the body could be of any size.
        if (request.content_length or MAX_BYTES + 1) > MAX_BYTES:
            text = f"body too large: expected at most {MAX_BYTES} bytes"
            return json_error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        try:
            cosigned = msgspec.json.decode(
                await _read_body(request), type=cosignatures.CosignedCheckpoint
            )
            if cosigned.note:
                # Verifies the signature: it raises for an invalid one.
                cosigned.seconds()
                _check_name(credential.name, cosigned)
            await self.guard.submit_checkpoint(credential.name, cosigned.note)
            if cosigned.note:
                await self._store(credential.name, cosigned)
        except signing_guard.CheckpointConflictError as error:
            return json_error(HTTPStatus.CONFLICT, str(error))
        except KeyChangeLimitError as error:
            return json_error(HTTPStatus.TOO_MANY_REQUESTS, str(error))
        except (*untrusted_text.DECODING_ERRORS, signed_note.NoteError) as error:
            return json_error(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        except (UnusableLedgerError, OSError) as error:
            log.error("cosignature_failed", node=credential.name, problem=str(error))
            text = "cannot read the log, or store the cosignature"
            return json_error(HTTPStatus.SERVICE_UNAVAILABLE, text)
        return web.Response(text="held\n")

    async def _store(self, node: str, cosigned: cosignatures.CosignedCheckpoint) -> None:
        """Store a cosignature; a new key is recorded first. Raises KeyChangeLimitError."""
        previous = self.witnesses.nodes.get(node)
        if previous is None or previous.key != cosigned.key:
            self._limit_key_change(node)
            data = {"key": cosigned.key, **({"before": previous.key} if previous else {})}
            draft = RecordDraft(
                "log.witness",
                record.RecordActor("agent", node),
                self.guard.trail.wall_ns(),
                "done",
                record.RecordSubject(node),
                dict(data),
            )
            if not await self.guard.trail.append(draft):
                # Nothing was recorded: the node may try again at once.
                del self._key_changed_ns[node]
                return
        self.witnesses.put(node, cosigned)

    def _limit_key_change(self, node: str) -> None:
        """Note the time of a key change. Raises KeyChangeLimitError."""
        now_ns, before_ns = self.guard.trail.wall_ns(), self._key_changed_ns.get(node)
        if before_ns is not None and 0 <= now_ns - before_ns < MIN_KEY_CHANGE_NS:
            expected = "expected at least one hour since its last change"
            message = f"key change rejected: {node}: {expected}"
            raise KeyChangeLimitError(message)
        self._key_changed_ns[node] = now_ns


def _check_name(node: str, cosigned: cosignatures.CosignedCheckpoint) -> None:
    """Check that a key is in the name of the node. Raises NoteError."""
    if not cosigned.is_named_for(node):
        message = f"invalid name of the key of cosignatures: expected {node}"
        raise signed_note.NoteError(message)


async def _read_body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout from None
