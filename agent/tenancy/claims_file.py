"""Claims in a file of the node's administrator, with dates, as TOML or CSV.

Its authority is that of a scheduler: only files of the collector rank above it.

    [[claim]]
    gpu = "0"                              # index, UUID, PCI address, /dev/nvidiaN; `*`: all GPUs here
    tenant = "team-red"
    from = 2026-01-01T00:00:00Z            # default: the time at which the agent first read the line
    to = 2026-02-01T00:00:00Z              # default: no end

CSV has the same names in its first line; `holds` is an alias of `gpu`, and its value may be the name of a
node. Other names: workload, owner, exclusive, share (3/8 or 37.5%; then it is not exclusive), system. Lines
about GPUs of other nodes are ignored.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from agent.host import Host
from agent.sampling.source import ProbeFinding, ProbeVerdict, format_count
from agent.tenancy import devices as naming
from agent.tenancy.claims import FILE_SOURCE, ClaimReport, NodeClaim, failed_report
from agent.tenancy.devices import ClaimableDevice, NodeDevices
from railscope.claim_terms import ClaimAuthority, ShareError, parse_written_share, share_text
from railscope.untrusted_text import TomlError, parse_toml

SUBJECT = "claims by file"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAMES = ("gpu", "tenant", "from", "to", "workload", "owner", "exclusive", "share", "system")
_YES, _NO = {"true", "yes", "1"}, {"false", "no", "0", ""}


class ClaimsFileError(ValueError):
    """A file that cannot be used; the message names the line or the claim."""


class ClaimsFileLine(msgspec.Struct, frozen=True):
    """Content of one line or table. Times are nanoseconds since the epoch."""

    gpu: str
    tenant: str
    start_ns: int | None = None
    end_ns: int | None = None
    workload: str = ""
    owner: str = ""
    exclusive: bool = True
    share: str = ""
    system: bool = False


@dataclass(slots=True)
class ClaimsFile:
    """Claims of a file, which is read at each poll and parsed when it has changed."""

    path: str
    node: Callable[[], str]
    name: str = "file"
    _content: bytes = b""
    _lines: tuple[ClaimsFileLine, ...] = ()

    def look(
        self, host: Host, devices: NodeDevices, in_force: tuple[NodeClaim, ...]
    ) -> ClaimReport:
        """Return the claims on this node. An invalid file changes nothing."""
        if not self.path:
            return ClaimReport(
                findings=(ProbeFinding(SUBJECT, ProbeVerdict.ABSENT, "no tenancy.file is set"),)
            )
        try:
            content = host.read(self.path)
            if content != self._content:
                self._lines = parse_claims_file(content, toml=self.path.endswith(".toml"))
                self._content = content
        except (OSError, ClaimsFileError) as error:
            return failed_report(
                SUBJECT, error, f"mend {self.path}: until then its claims stay as they were"
            )
        held = tuple(one for line in self._lines for one in self._held(line, devices, in_force))
        detail = (
            f"{self.path}: {format_count(len(self._lines), 'claim')}, {len(held)} on devices here"
        )
        return ClaimReport(held, (ProbeFinding(SUBJECT, ProbeVerdict.SUPPORTED, detail),))

    def _held(
        self, line: ClaimsFileLine, devices: NodeDevices, in_force: tuple[NodeClaim, ...]
    ) -> Iterator[NodeClaim]:
        """Yield the claims of a line on this node; a line for all GPUs includes lost ones."""
        node = self.node()
        of_node = line.gpu == "*" or line.gpu in {node, node.partition(".")[0]}
        if of_node:
            found = [devices.gpu(gpu.uuid) for gpu in devices.present]
        else:
            named = naming.find_device(line.gpu, devices)
            found = [named] if named else []
        claims = {device.id: self._claim(line, device, node if of_node else "") for device in found}
        yield from claims.values()
        for held in in_force if of_node else ():
            if held.part not in claims and self._claim(line, devices.gpu(held.gpu), node).agrees(
                held
            ):
                yield held

    def _claim(self, line: ClaimsFileLine, device: ClaimableDevice, node: str) -> NodeClaim:
        return NodeClaim(
            source=FILE_SOURCE, level=ClaimAuthority.SCHEDULER, workload=line.workload, owner=line.owner,
            tenant=line.tenant, node=node, gpu=device.gpu, device=device.id,
            reference="" if line.start_ns is None else str(line.start_ns),
            compute=device.compute, memory=device.memory, profile=device.profile,
            exclusive=line.exclusive and device.exact, share=line.share, system=line.system,
            start_ns=line.start_ns, end_ns=line.end_ns,
            uncertainty_ns=None if line.start_ns is None else 0,
        )  # fmt: skip


def parse_claims_file(content: bytes, *, toml: bool) -> tuple[ClaimsFileLine, ...]:
    """Return the lines of a file. Raises ClaimsFileError that names the first invalid one."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        message = f"no UTF-8: {error}"
        raise ClaimsFileError(message) from error
    return tuple(
        _parse_line(place, told)
        for place, told in (_read_tables(text) if toml else _read_rows(text))
    )


def _read_tables(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        told = parse_toml(text)
    except TomlError as error:
        message = f"no TOML: {error}"
        raise ClaimsFileError(message) from error
    claims = told.pop("claim", [])
    if told or not isinstance(claims, list):
        message = f"only [[claim]] tables are known here, not {', '.join(sorted(told)) or 'claim'}"
        raise ClaimsFileError(message)
    for number, claim in enumerate(claims, 1):
        yield f"claim {number}", claim


def _read_rows(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    lines = ["" if line.startswith("#") else line for line in text.splitlines()]
    reader = csv.reader(lines, strict=True)
    header: list[str] = []
    try:
        for row in reader:
            if not row:
                continue
            if not header:
                header = ["gpu" if name.strip() == "holds" else name.strip() for name in row]
                continue
            place = f"line {reader.line_num}"
            if len(row) != len(header):
                message = f"{place}: {len(row)} values for {len(header)} columns"
                raise ClaimsFileError(message)
            yield place, dict(zip(header, row, strict=True))
    except csv.Error as error:
        message = f"line {reader.line_num}: no CSV: {error}"
        raise ClaimsFileError(message) from error


def _parse_line(place: str, told: dict[str, Any]) -> ClaimsFileLine:
    unknown = sorted(told.keys() - set(_NAMES))
    if unknown:
        message = f"{place}: unknown {', '.join(unknown)}; known are {', '.join(_NAMES)}"
        raise ClaimsFileError(message)
    for name in ("gpu", "tenant"):
        if not isinstance(told.get(name), str) or not told[name]:
            message = f"{place}: {name} is missing"
            raise ClaimsFileError(message)
    start_ns, end_ns = (_parse_timestamp(place, name, told.get(name)) for name in ("from", "to"))
    if start_ns is not None and end_ns is not None and end_ns <= start_ns:
        message = f"{place}: it ends before it begins"
        raise ClaimsFileError(message)
    share = _parse_share(place, told.get("share"))
    return ClaimsFileLine(
        told["gpu"], told["tenant"], start_ns, end_ns,
        str(told.get("workload", "")), str(told.get("owner", "")),
        exclusive=_parse_flag(place, "exclusive", told.get("exclusive", True)) and not share,
        share=share,
        system=_parse_flag(place, "system", told.get("system", False)),
    )  # fmt: skip


def _parse_timestamp(place: str, name: str, told: Any) -> int | None:
    """Convert RFC 3339 with an offset to nanoseconds since the epoch; None for an empty value."""
    if told is None or told == "":
        return None
    try:
        when = told if isinstance(told, datetime) else datetime.fromisoformat(told)
    except (TypeError, ValueError) as error:
        message = f"{place}: {name} {told!r} is no instant: {error}"
        raise ClaimsFileError(message) from error
    if when.tzinfo is None:
        message = f"{place}: {name} {told} has no offset: write {when.isoformat()}Z for UTC"
        raise ClaimsFileError(message)
    since = when - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds) * 1000


def _parse_share(place: str, told: Any) -> str:
    """Return the share as `n/d`; empty for an empty value."""
    if told is None or told == "":
        return ""
    try:
        return share_text(parse_written_share(str(told)))
    except ShareError as error:
        message = f"{place}: {error}"
        raise ClaimsFileError(message) from error


def _parse_flag(place: str, name: str, told: Any) -> bool:
    word = str(told).strip().lower()
    if word in _YES | _NO:
        return word in _YES
    message = f"{place}: {name} is true or false, not {told!r}"
    raise ClaimsFileError(message)
