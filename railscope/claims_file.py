"""Claims files: CSV of the administrators' dated claims, read by the collector.

    tenant,gpu,from,to,share
    team-red,GPU-5c1a2e9e-0d3f-4b6a-8e21-7f4c9d2b1a05,2026-01-01T00:00:00Z,2026-02-01T00:00:00Z,3/8
    team-blue,gpu-001,2026-01-15T08:00:00+01:00,,

`gpu`, also written `holds`, is the UUID of a GPU or the name of a node, for all GPUs in it. Times are RFC 3339
with an offset; an empty `to` means no end. `share` is a fraction of each GPU such as 3/8 or 37.5%; empty for
all of it. Columns may be in any order, among them also workload, owner, exclusive and system.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from railscope import RailscopeError, claim_terms, convert_errors, timestamps, untrusted_text

DATED_COLUMNS = ("tenant", "gpu", "from", "to")
_COLUMNS = (*DATED_COLUMNS, "share", "workload", "owner", "exclusive", "system")
_YES, _NO = {"true", "yes", "1"}, {"false", "no", "0", ""}
_MAX_QUOTED = 200


class ClaimsFileError(RailscopeError, ValueError):
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
    """`n/d` of each GPU; empty for all of it."""
    system: bool = False


def parse_claims_file(text: str) -> tuple[ClaimsFileLine, ...]:
    """Parse a file. Raises ClaimsFileError."""
    with convert_errors(untrusted_text.CsvError, ClaimsFileError):
        return tuple(_parse_lines(text))


def _parse_lines(text: str) -> Iterator[ClaimsFileLine]:
    rows = untrusted_text.parse_csv(text)
    number, first = next(rows, (1, []))
    header = ["gpu" if name == "holds" else name for name in first]
    unknown = sorted(set(header) - set(_COLUMNS))
    missing = sorted(set(DATED_COLUMNS) - set(header))
    repeated = sorted(name for name, count in Counter(header).items() if count > 1)
    for problem, names in (("unknown", unknown), ("repeated", repeated), ("missing", missing)):
        if names:
            found = f"{problem} column {', '.join(names)[:_MAX_QUOTED]}"
            expected = f"expected CSV with {', '.join(_COLUMNS)}"
            message = f"line {number}: invalid header: {found}: {expected}"
            raise ClaimsFileError(message)
    for number, row in rows:
        try:
            yield _parse_line(dict(zip(header, row, strict=True)))
        except ValueError as error:
            problem = str(error) if len(row) == len(header) else _wrong_length(row, header)
            message = f"line {number}: {problem}"
            raise ClaimsFileError(message) from error


def _wrong_length(row: list[str], header: list[str]) -> str:
    return f"{','.join(row)[:_MAX_QUOTED]}: {len(row)} values: expected {len(header)}"


def _parse_line(row: dict[str, str]) -> ClaimsFileLine:
    for name in ("gpu", "tenant", "from"):
        if not row.get(name):
            message = f"missing {name}: expected a value"
            raise ClaimsFileError(message)
    start_ns = _parse_time("from", row, timestamps.parse_start)
    end_ns = _parse_time("to", row, timestamps.parse_end)
    if end_ns is not None and end_ns <= (start_ns or 0):
        message = "invalid to: expected an end after the start"
        raise ClaimsFileError(message)
    if end_ns == timestamps.FOREVER_NS:
        end_ns = None
    share = row.get("share", "")
    return ClaimsFileLine(
        row["gpu"],
        row["tenant"],
        start_ns,
        end_ns,
        row.get("workload", ""),
        row.get("owner", ""),
        # A share leaves the rest of the GPU to other claims.
        exclusive=_parse_flag("exclusive", row.get("exclusive", "true")) and not share,
        share=claim_terms.share_text(claim_terms.parse_written_share(share)) if share else "",
        system=_parse_flag("system", row.get("system", "")),
    )


def _parse_time(name: str, row: dict[str, str], parse: Callable[[object], int]) -> int | None:
    with convert_errors(timestamps.TimestampError, ClaimsFileError, f"invalid {name}: "):
        return parse(row[name]) if row.get(name) else None


def _parse_flag(name: str, text: str) -> bool:
    if text.lower() in _YES | _NO:
        return text.lower() in _YES
    message = f"invalid {name} {text!r}: expected true or false"
    raise ClaimsFileError(message)
