"""Claims in a CSV file of the node's administrator, with dates.

Its authority is that of a scheduler: only files of the collector rank above it.

    gpu,tenant,from,to
    0,team-red,2026-01-01T00:00:00Z,2026-02-01T00:00:00Z

`gpu` is an index, a UUID, a PCI address or /dev/nvidiaN; `*` or the name of this node for all GPUs here. As
in the claims file of the collector the column may be named `holds`. Without `from` the claim starts when
the agent first reads the line; without `to` it has no end. Other columns: workload, owner, exclusive, share
(3/8 or 37.5%; then it is not exclusive), system. Lines about GPUs of other nodes are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from agent.host import Host
from agent.sampling.source import ProbeFinding, format_count
from agent.tenancy import claims, devices as naming
from agent.tenancy.devices import ClaimableDevice, NodeDevices
from railscope.claim_terms import ClaimAuthority, parse_written_share, share_text
from railscope.timestamps import TimestampError, parse_timestamp
from railscope.untrusted_text import CsvError, parse_csv

SUBJECT = "claims by file"
_COLUMNS = ("gpu", "tenant", "from", "to", "workload", "owner", "exclusive", "share", "system")
_YES, _NO = {"true", "yes", "1"}, {"false", "no", "0", ""}


class ClaimsFileError(claims.TenancyError, ValueError):
    """A file that cannot be used; the message names the line."""


class ClaimsFileLine(msgspec.Struct, frozen=True):
    """Content of one line. Times are nanoseconds since the epoch."""

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

    def poll(
        self, host: Host, devices: NodeDevices, in_force: tuple[claims.NodeClaim, ...]
    ) -> claims.ClaimReport:
        """Return the claims on this node. An invalid file changes nothing."""
        if not self.path:
            return claims.absent_report(SUBJECT, "tenancy.claims_file is not set")
        try:
            content = host.read(self.path)
            if content != self._content:
                self._lines = parse_claims_file(content)
                self._content = content
        except (OSError, ClaimsFileError) as error:
            return claims.failed_report(
                SUBJECT, error, f"correct {self.path}; its previous claims stay in force until then"
            )
        claims_here = tuple(
            claim for line in self._lines for claim in self._claims_of_line(line, devices, in_force)
        )
        detail = (
            f"{format_count(len(self._lines), 'claim')} in {self.path}, {len(claims_here)} on "
            "devices of this node"
        )
        return claims.ClaimReport(claims_here, (ProbeFinding.supported(SUBJECT, detail),))

    def _claims_of_line(
        self, line: ClaimsFileLine, devices: NodeDevices, in_force: tuple[claims.NodeClaim, ...]
    ) -> Iterator[claims.NodeClaim]:
        """Yield the claims of a line on this node; a line for all GPUs includes lost ones."""
        node = self.node()
        of_node = line.gpu == "*" or line.gpu in {node, node.partition(".")[0]}
        if of_node:
            named_devices = [devices.gpu(gpu.uuid) for gpu in devices.present]
        else:
            named = naming.find_device(line.gpu, devices)
            named_devices = [named] if named else []
        by_device = {
            device.id: self._claim(line, device, node if of_node else "")
            for device in named_devices
        }
        yield from by_device.values()
        for active in in_force if of_node else ():
            if active.part not in by_device and self._claim(
                line, devices.gpu(active.gpu), node
            ).has_same_content(active):
                yield active

    def _claim(self, line: ClaimsFileLine, device: ClaimableDevice, node: str) -> claims.NodeClaim:
        return claims.NodeClaim(
            source=claims.FILE_SOURCE,
            authority=ClaimAuthority.SCHEDULER,
            workload=line.workload,
            owner=line.owner,
            tenant=line.tenant,
            node=node,
            gpu="",
            reference="" if line.start_ns is None else str(line.start_ns),
            exclusive=line.exclusive,
            system=line.system,
            start_ns=line.start_ns,
            end_ns=line.end_ns,
            uncertainty_ns=None if line.start_ns is None else 0,
        ).claim_on_device(device, line.share)


def parse_claims_file(content: bytes) -> tuple[ClaimsFileLine, ...]:
    """Return the lines of a file. Raises ClaimsFileError that names the first invalid one."""
    try:
        return tuple(_parse_lines(content.decode()))
    except UnicodeDecodeError as error:
        message = f"invalid UTF-8: {error}"
        raise ClaimsFileError(message) from error
    except CsvError as error:
        raise ClaimsFileError(str(error)) from error


def _parse_lines(text: str) -> Iterator[ClaimsFileLine]:
    for number, row in _read_rows(text):
        try:
            yield _parse_line(row)
        except ValueError as error:
            message = f"invalid line {number}: {error}"
            raise ClaimsFileError(message) from error


def _read_rows(text: str) -> Iterator[tuple[int, dict[str, str]]]:
    rows = parse_csv(text)
    number, first = next(rows, (1, []))
    header = ["gpu" if name == "holds" else name for name in first]
    if unknown := sorted(set(header) - set(_COLUMNS)):
        message = f"invalid line {number}: unknown column {', '.join(unknown)}: expected CSV with {', '.join(_COLUMNS)}"
        raise ClaimsFileError(message)
    for number, row in rows:
        if len(row) != len(header):
            message = f"invalid line {number}: {len(row)} values: expected {len(header)}"
            raise ClaimsFileError(message)
        yield number, dict(zip(header, row, strict=True))


def _parse_line(row: dict[str, str]) -> ClaimsFileLine:
    for name in ("gpu", "tenant"):
        if not row.get(name):
            message = f"missing {name}: expected a value"
            raise ClaimsFileError(message)
    start_ns, end_ns = (_parse_time(name, row.get(name, "")) for name in ("from", "to"))
    if start_ns is not None and end_ns is not None and end_ns <= start_ns:
        message = "invalid to: expected a time after from"
        raise ClaimsFileError(message)
    share = row.get("share", "")
    return ClaimsFileLine(
        row["gpu"],
        row["tenant"],
        start_ns,
        end_ns,
        row.get("workload", ""),
        row.get("owner", ""),
        exclusive=_parse_flag("exclusive", row.get("exclusive", "true")) and not share,
        share=share_text(parse_written_share(share)) if share else "",
        system=_parse_flag("system", row.get("system", "")),
    )


def _parse_time(name: str, text: str) -> int | None:
    try:
        return parse_timestamp(text) if text else None
    except TimestampError as error:
        message = f"invalid {name}: {error}"
        raise ClaimsFileError(message) from error


def _parse_flag(name: str, text: str) -> bool:
    if text.lower() in _YES | _NO:
        return text.lower() in _YES
    message = f"invalid {name} {text!r}: expected true or false"
    raise ClaimsFileError(message)
