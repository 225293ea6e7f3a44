"""API of `railscope claim` and `railscope health`: HTTP and JSON over a Unix socket that only root may use.

    POST /v1/claims            start a claim: {"id", "gpus": [...], "tenant" or "owner", "workload", ...}
    POST /v1/claims/ID/end     end a claim: {} or {"end": RFC 3339}
    GET  /v1/claims            all claims in force, from every claim provider
    GET  /v1/health            health verdict on all devices; of a job: ?job=ID, or ?job=ID&gpu=/dev/nvidia0&gpu=...

Status 200 means that the change is on disk. Repeating a request changes nothing.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, unquote

import msgspec
import structlog

from railscope import (
    claim_terms,
    convert_errors,
    service,
    timestamps,
    untrusted_text,
)
from railscope.health_verdict import HEALTH_PATH, NodeVerdict, unknown_verdict
from railscope.http_server import HttpServer, HttpServerRequest, HttpServerResponse
from railscope.settings import MAX_QUOTED, SettingsError
from railscope_agent.config import CLAIMS_PATH, CLAIMS_SOCKET, TenancySettings
from railscope_agent.endpoint import EndpointError
from railscope_agent.health.node_health import NodeHealth
from railscope_agent.host import Clock
from railscope_agent.sources.tenancy import ClaimSource
from railscope_agent.tenancy import (
    TenancyError,
    claims,
    clock_history,
    command_claims,
    devices as naming,
)
from railscope_agent.tenancy.devices import UNKNOWN_NUMBER, ClaimableDevice, GpuNames

log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 64 << 10
MAX_JOB_GPUS = 256
_END = re.compile(rf"{CLAIMS_PATH}/([^/]+)/end")
_RETRY_NS = 2_000_000_000
# The clocks of a scheduler's server and of the node may differ.
_MAX_FUTURE_NS = 60 * timestamps.SECOND_NS
_ROOT_ONLY = 0o600
_SOCKET_PATH_LIMIT = 108

ClaimText = Annotated[str, msgspec.Meta(max_length=256, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
ClaimId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:@+=-]{0,127}\Z")]


class ClaimStartRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request that starts a claim. `allow_restart`: an id that has ended may start once more."""

    id: ClaimId
    gpus: Annotated[list[ClaimText], msgspec.Meta(min_length=1, max_length=256)]
    tenant: ClaimText = ""
    owner: ClaimText = ""
    workload: ClaimText = ""
    exclusive: bool = True
    share: ClaimText = ""
    system: bool = False
    start: datetime | None = None
    allow_restart: bool = False


class ClaimEndRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Request that ends a claim, by default now."""

    end: datetime | None = None


class _RequestRejectedError(EndpointError):
    """A rejected request: a status and a reason."""

    def __init__(self, message: str, status: HTTPStatus = HTTPStatus.UNPROCESSABLE_ENTITY) -> None:
        super().__init__(message)
        self.status = status


_STATUSES: Mapping[type[TenancyError], HTTPStatus] = {
    command_claims.ClaimConflictError: HTTPStatus.CONFLICT,
    command_claims.UnknownClaimError: HTTPStatus.NOT_FOUND,
    command_claims.ClaimNotStoredError: HTTPStatus.SERVICE_UNAVAILABLE,
}


class ClaimsEndpoint:
    """Serves the claims of one agent until closed."""

    def __init__(
        self,
        settings: TenancySettings,
        state: Path,
        tenancy: ClaimSource,
        clock: Clock,
        health: NodeHealth,
    ) -> None:
        self._health = health
        self._is_required = bool(settings.socket)
        self._path = Path(settings.socket) if settings.socket else state / CLAIMS_SOCKET
        self._tenancy, self._clock = tenancy, clock
        self._server: HttpServer | None = None

    async def start(self) -> None:
        """Listen on the socket. Raises SettingsError."""
        await self._serve_socket(is_first=True)

    async def keep_trying(self) -> None:
        """Retry until the directory of the socket can be used."""
        while self._server is None:
            await self._clock.sleep_until(self._clock.now().boot_ns + _RETRY_NS)
            await self._serve_socket(is_first=False)

    async def _serve_socket(self, *, is_first: bool) -> None:
        try:
            listening = _bind_socket(self._path)
        except OSError as error:
            message = f"cannot listen on {self._path}: {error.strerror or error}"
            # Another agent is a mistake that does not end by itself; a missing directory may be created
            # later.
            if is_first and (self._is_required or error.errno == errno.EADDRINUSE):
                raise SettingsError(message) from error
            if is_first:
                log.warning(
                    "claims_socket_failed",
                    problem=message,
                    advice="make the state directory writable; the agent retries",
                )
            return
        self._server = HttpServer(self._respond, MAX_BODY_BYTES)
        await self._server.start_unix(listening)
        if not is_first:
            log.info("claims_socket_opened", path=str(self._path))

    async def close(self) -> None:
        """Stop listening and remove the socket."""
        if self._server:
            await self._server.close()
            with suppress(OSError):
                self._path.unlink()

    async def _respond(self, request: HttpServerRequest) -> HttpServerResponse:
        try:
            return await self._answer(request)
        except untrusted_text.DECODING_ERRORS as error:
            is_json = isinstance(error, msgspec.ValidationError)
            status = HTTPStatus.UNPROCESSABLE_ENTITY if is_json else HTTPStatus.BAD_REQUEST
            return _json_response({"error": str(error)}, status)
        except _RequestRejectedError as error:
            return _json_response({"error": str(error)}, error.status)
        except tuple(_STATUSES) as error:
            return _json_response({"error": str(error.args[-1])}, _STATUSES[type(error)])

    async def _answer(self, request: HttpServerRequest) -> HttpServerResponse:
        end = _END.fullmatch(request.path)
        if request.path == HEALTH_PATH and request.method in {"GET", "HEAD"}:
            content = msgspec.json.encode(self._judge(request.query))
            return HttpServerResponse(content, "application/json")
        if request.path == CLAIMS_PATH and request.method in {"GET", "HEAD"}:
            return _json_response({"claims": self._in_force()})
        if request.path == CLAIMS_PATH and request.method == "POST":
            start = msgspec.json.decode(request.body, type=ClaimStartRequest)
            claim = self._claim(start)
            stored = await service.run_in_thread(
                self._tenancy.commands.start, claim, allow_restart=start.allow_restart
            )
            return _json_response({"claim": _claim_json(stored)})
        if end and request.method == "POST":
            end_time = msgspec.json.decode(request.body or b"{}", type=ClaimEndRequest).end
            edge = self._timestamp(end_time, "end")
            stored = await service.run_in_thread(self._tenancy.commands.end, unquote(end[1]), *edge)
            return _json_response({"claim": _claim_json(stored)})
        is_known = request.path == CLAIMS_PATH or end
        status = HTTPStatus.METHOD_NOT_ALLOWED if is_known else HTTPStatus.NOT_FOUND
        message = (
            f"unknown request {request.method} {request.path}: expected GET or "
            f"POST {CLAIMS_PATH}, POST {CLAIMS_PATH}/ID/end, or GET {HEALTH_PATH}"
        )
        raise _RequestRejectedError(message, status)

    def _judge(self, query: str) -> NodeVerdict:
        """Return the verdict on all devices of the node, or on those of one job."""
        try:
            parameters = parse_qs(query, strict_parsing=bool(query), max_num_fields=MAX_JOB_GPUS)
        except ValueError as error:
            message = f"invalid query: expected at most {MAX_JOB_GPUS} parameters NAME=VALUE"
            raise _RequestRejectedError(message, HTTPStatus.BAD_REQUEST) from error
        job, names = parameters.pop("job", [""])[-1], parameters.pop("gpu", [])
        if parameters:
            message = f"unknown parameter {min(parameters)[:MAX_QUOTED]!r}: expected job or gpu"
            raise _RequestRejectedError(message, HTTPStatus.BAD_REQUEST)
        now_ns = self._clock.now().boot_ns
        if not (job or names):
            return self._health.judge(now_ns, None, "")
        gpus = {self._whole_gpu(name) for name in names} if names else self._gpus_of_job(job)
        problem = f"no claim of job {job} on this node" if not gpus else ""
        if "" in gpus:
            problem = f"the GPUs of job {job} are not known"
        if problem:
            return unknown_verdict(problem, job)
        return self._health.judge(now_ns, gpus, job)

    def _whole_gpu(self, name: str) -> str:
        """Return the UUID of the GPU with a device file; empty if it is unknown, or if a number may be that of a MIG device."""
        device = naming.find_slurm_device(name, self._tenancy.devices)
        return device.gpu if device else ""

    def _gpus_of_job(self, job: str) -> set[str]:
        """Return the UUIDs of the GPUs that a job holds or shares; empty for a GPU that its claim does not name."""
        active = (each.claim for each in self._tenancy.active_claims if each.is_claim)
        return {
            claim.gpu
            # A prolog may ask for the verdict right after its claim, before the next poll.
            for claim in (*active, *self._tenancy.commands.in_force)
            if job in {":".join(claim.owning_workload), claim.owning_workload[1]}
        }

    def _claim(self, start: ClaimStartRequest) -> command_claims.CommandClaim:
        if not start.tenant and not start.owner:
            message = "missing owner of the claim: expected tenant or owner"
            raise _RequestRejectedError(message)
        devices = dict.fromkeys(self._device(text) for text in start.gpus)
        start_ns, start_boot = self._timestamp(start.start, "start")
        share = _parse_share(start)
        return command_claims.CommandClaim(
            id=start.id,
            devices=tuple(devices),
            tenant=start.tenant,
            owner=start.owner,
            workload=start.workload,
            exclusive=start.exclusive and not share,
            share=share,
            system=start.system,
            start_ns=start_ns,
            start_boot=start_boot,
        )

    def _device(self, text: str) -> ClaimableDevice:
        devices = self._tenancy.devices
        # `--from-slurm` sends Slurm's numbers as device files: on a node in MIG mode they may be MIG devices.
        device = naming.find_slurm_device(text, devices)
        if device:
            return device
        if not devices.all:
            message = "no GPU has been detected yet: retry in a few seconds"
            raise _RequestRejectedError(message, HTTPStatus.SERVICE_UNAVAILABLE)
        message = (
            f"unknown GPU {text!r}: expected {naming.DEVICE_NAME_KINDS}; GPUs "
            f"of this node: {devices.names}"
        )
        raise _RequestRejectedError(message)

    def _timestamp(
        self, time: datetime | None, field: str
    ) -> tuple[int, clock_history.BootTime | None]:
        """Return the specified time, or else now: nanoseconds since the epoch, and on the boot clock."""
        now, history = self._clock.now(), self._tenancy.clock
        if time is None:
            return now.wall_ns, history.now(now)
        with convert_errors(timestamps.TimestampError, _RequestRejectedError, f"invalid {field}: "):
            timestamp_ns = timestamps.from_datetime(time)
        if timestamp_ns > now.wall_ns + _MAX_FUTURE_NS:
            message = f"invalid {field} {timestamps.format_datetime(time)}: expected a time that is not in the future"
            raise _RequestRejectedError(message)
        return timestamp_ns, history.convert_wall_time(timestamp_ns)

    def _in_force(self) -> list[dict[str, str]]:
        """Return the claims of the last poll, and those made since."""
        gpus = self._tenancy.devices.all
        rows = [
            _claim_row(active.adapter, active.id, active.claim, gpus)
            for active in self._tenancy.active_claims
        ]
        reported = {(row["id"], row["device"]) for row in rows}
        started = self._tenancy.commands.in_force
        since = [_claim_row(claims.COMMAND_PROVIDER, "", claim, gpus) for claim in started]
        return rows + [row for row in since if (row["id"], row["device"]) not in reported]


def _claim_row(
    reported_by: str, name: str, claim: claims.NodeClaim, gpus: Mapping[str, GpuNames]
) -> dict[str, str]:
    """Return a claim as a row with all names of its GPU; a claim made by command has its own id."""
    gpu = gpus.get(claim.gpu)
    return {
        "id": claim.reference if reported_by == claims.COMMAND_PROVIDER else name,
        "reported_by": reported_by,
        "source": claim.source,
        "authority": claim.authority.label,
        "workload": claim.workload,
        "owner": claim.owner,
        "tenant": claim.tenant,
        "gpu": claim.gpu,
        "device": claim.part,
        "index": str(gpu.index) if gpu and gpu.index != UNKNOWN_NUMBER else "",
        "pci_address": gpu.pci_address if gpu else "",
        "share": claim.share,
        "count": str(claim.count or ""),
        "start": timestamps.format_timestamp(claim.start_ns or 0, "seconds"),
    }


def _parse_share(start: ClaimStartRequest) -> str:
    """Return the share of each device as `n/d`; empty for none."""
    if not start.share:
        return ""
    with convert_errors(claim_terms.ShareError, _RequestRejectedError):
        return claim_terms.share_text(claim_terms.parse_written_share(start.share))


def _bind_socket(path: Path) -> socket.socket:
    """Bind a socket at a path, for root and the agent's user; a stale socket file is replaced.

    No client can connect before it listens, and it listens after its mode is set. Raises OSError.
    """
    if len(str(path)) >= _SOCKET_PATH_LIMIT:
        raise OSError(errno.ENAMETOOLONG, "path of the socket too long: expected at most 107 bytes")
    # Any other file at this path is not the agent's: binding fails, and nothing is deleted.
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as other:
            # Nothing listens on the file that a killed agent left behind.
            if other.connect_ex(str(path)) != errno.ECONNREFUSED:
                raise OSError(errno.EADDRINUSE, "in use by another agent")
        path.unlink()
    listening = socket.socket(socket.AF_UNIX)
    try:
        listening.bind(str(path))
        path.chmod(_ROOT_ONLY)
    except OSError:
        listening.close()
        raise
    return listening


def _claim_json(claim: command_claims.CommandClaim) -> dict[str, Any]:
    return {
        "id": claim.id,
        "devices": [device.id for device in claim.devices],
        "tenant": claim.tenant,
        "owner": claim.owner,
        "workload": claim.workload,
        "start": timestamps.format_timestamp(claim.start_ns, "seconds"),
        "end": None
        if claim.end_ns is None
        else timestamps.format_timestamp(claim.end_ns, "seconds"),
    }


def _json_response(
    content: dict[str, Any], status: HTTPStatus = HTTPStatus.OK
) -> HttpServerResponse:
    return HttpServerResponse(msgspec.json.encode(content) + b"\n", "application/json", status)
