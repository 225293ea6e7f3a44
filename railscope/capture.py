"""Captures: recordings of a node, with the result of each system and driver call over time.

A capture is a directory:

  capture.toml     contents, origin and duration of the recording
  timeline.jsonl   one line per timestamp: differences from the line before

A line contains `t` (nanoseconds since the start) and any of: `files` (path: text), `names` (directory:
entries), `links` (path: resolved path), `calls` (host interface, function and arguments: result) and
`log` (kernel log records). A failure is stored as `{"error": ["os" | "nvml", number]}` in place of the result, and a
call without a result as `{"pending": true}`: its caller waits for a later result. Text is UTF-8, with
undecodable bytes as surrogates.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias

import msgspec

from railscope import RailscopeError
from railscope.durable_files import name_file
from railscope.untrusted_text import MAX_BYTES, TomlError, parse_toml

Json: TypeAlias = Any  # result of json.loads; each reader narrows it at the point of use

FORMAT = 1
SECTIONS = ("files", "names", "links", "calls")
MAX_LINE_BYTES = 64 << 20
"""Bound of a line of the timeline, which is read whole.

The first one is the longest: 0.5 MiB of a node with 8 GPUs and 8 NICs. A line also has at most 8 MiB of dumps of flight
recorders, 16 MiB of an answer of NCCL RAS and, by default, 4 MiB of textfiles, in which JSON doubles quotes and line breaks.
"""
DAMAGED_STATUS = 3
"""Exit status of `agent replay` if a capture is damaged; an unexpected error ends Python with 1."""
_FILE_KINDS = {
    stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device", stat.S_IFDIR: "directory",
}  # fmt: skip
_Nanoseconds: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""Half the range of a timestamp: the sum of two is one."""
PENDING: Json = {"pending": True}
"""Stored in place of a result while a call has not returned, for example because of a stuck driver."""


class CaptureError(RailscopeError, ValueError):
    """A directory that is not a capture, or a damaged capture."""


class TruncatedCaptureError(CaptureError):
    """A capture with an incomplete last line: its writer was interrupted."""


class NvmlError(RailscopeError):
    """An NVML call failed with this return code (nvml.h, nvmlReturn_t)."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code

    def __str__(self) -> str:
        return f"NVML error {self.code}{': ' if self.args[1] else ''}{self.args[1]}"


def failure(error: NvmlError | OSError) -> Json:
    """Return the stored form of a failure."""
    if isinstance(error, NvmlError):
        return {"error": ["nvml", error.code]}
    # 5 (EIO) for an error without a number.
    return {"error": ["os", error.errno or 5]}


def result(stored: Json) -> Json:
    """Return a stored result, or raise the failure that it represents."""
    if isinstance(stored, dict) and set(stored) == {"error"}:
        kind, code = stored["error"]
        if kind == "nvml":
            raise NvmlError(code)
        raise OSError(code, os.strerror(code))
    return stored


class CaptureMoment(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Differences from the previous timestamp, at `offset_ns` after the start."""

    offset_ns: _Nanoseconds = msgspec.field(name="t")
    files: dict[str, Json] = {}
    names: dict[str, Json] = {}
    links: dict[str, Json] = {}
    calls: dict[str, Json] = {}
    log: list[str] = []

    def to_line(self) -> str:
        """Encode as a line of `timeline.jsonl`."""
        sections = {name: found for name in SECTIONS if (found := getattr(self, name))}
        log = {"log": self.log} if self.log else {}
        return json.dumps({"t": self.offset_ns, **sections, **log}, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str | bytes) -> CaptureMoment:
        """Decode a line of `timeline.jsonl`. Raises ValueError for a damaged one, and one that is too long."""
        if len(line) > MAX_LINE_BYTES:
            message = f"longer than {MAX_LINE_BYTES} bytes: expected a line for each timestamp"
            raise ValueError(message)
        try:
            # Undecodable bytes are surrogates, which this decoder rejects.
            with suppress(ValueError):
                return _moment_decoder.decode(line)
            text = line if isinstance(line, str) else line.decode(errors="surrogateescape")
            return msgspec.convert(json.loads(text), cls)
        except RecursionError as error:
            message = "nested too deeply: expected an object with the differences of one timestamp"
            raise ValueError(message) from error


READ_BYTES = 1 << 20
_moment_decoder = msgspec.json.Decoder(CaptureMoment)


@dataclass(frozen=True, slots=True)
class CaptureMetadata:
    """Metadata of a capture, as in `capture.toml`."""

    node: str
    boot_id: str
    started_wall_ns: _Nanoseconds
    started_boot_ns: _Nanoseconds
    duration_ns: int
    origin: str
    hardware: str = ""
    redacted: bool = False

    def to_toml(self) -> str:
        """Encode as the text of `capture.toml`."""
        return "\n".join(
            [
                f"format = {FORMAT}",
                f"node = {json.dumps(self.node)}",
                f"origin = {json.dumps(self.origin)}",
                f"hardware = {json.dumps(self.hardware)}",
                f"redacted = {str(self.redacted).lower()}",
                f"boot_id = {json.dumps(self.boot_id)}",
                f"started_wall_ns = {self.started_wall_ns}",
                f"started_boot_ns = {self.started_boot_ns}",
                f"duration_ns = {self.duration_ns}",
                "",
            ]
        )


@dataclass(frozen=True, slots=True)
class Capture:
    """A capture in memory."""

    about: CaptureMetadata
    moments: tuple[CaptureMoment, ...]

    def write(self, directory: Path) -> None:
        """Write the capture into a new or empty directory."""
        write_capture(directory, self.about, self.moments)


class CaptureWriter:
    """Writes a capture, one `CaptureMoment` at a time, into a new or empty directory."""

    def __init__(self, directory: Path, about: CaptureMetadata) -> None:
        self._directory, self._about = directory, about
        self._timeline = directory / "timeline.jsonl"

    def __enter__(self) -> Self:
        """Create the directory and its timeline. Raises OSError."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._out = self._timeline.open("w", encoding="utf-8", errors="surrogateescape")
        return self

    def write(self, moment: CaptureMoment) -> None:
        """Write a moment. Raises OSError."""
        with name_file(self._timeline):
            self._out.write(moment.to_line() + "\n")

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Complete the capture; without `capture.toml` an interrupted one cannot be read. Raises OSError."""
        with name_file(self._timeline):
            self._out.close()
        if error is None:
            path = self._directory / "capture.toml"
            with name_file(path):
                path.write_text(self._about.to_toml(), encoding="utf-8")


def write_capture(
    directory: Path, about: CaptureMetadata, moments: Iterable[CaptureMoment]
) -> None:
    """Write a complete capture into a new or empty directory."""
    with CaptureWriter(directory, about) as writer:
        for moment in moments:
            writer.write(moment)


def read_capture(directory: Path) -> Capture:
    """Read a capture. Raises CaptureError that names the missing or damaged file and the position."""
    return Capture(read_metadata(directory), tuple(read_moments(directory)))


def check_regular_file(path: Path) -> None:
    """Raise OSError unless the path is a regular file or a link to one: to open a pipe waits for its writer."""
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        found = _FILE_KINDS.get(kind, "unknown kind of file")
        raise OSError(errno.EINVAL, f"{found}: expected a regular file")


def read_metadata(directory: Path) -> CaptureMetadata:
    """Read the metadata of a capture. Raises CaptureError."""
    path = directory / "capture.toml"
    try:
        check_regular_file(path)
        with path.open(encoding="utf-8") as file:
            settings = parse_toml(file.read(MAX_BYTES + 1))
        if settings.pop("format") != FORMAT:
            message = (
                f"unknown capture format: {directory}: expected {FORMAT}; fix: record it again"
            )
            raise CaptureError(message)
        return msgspec.convert(settings, CaptureMetadata)
    except OSError as error:
        message = f"reading the capture failed: {path}: {error.strerror}"
        raise CaptureError(message) from error
    except (KeyError, UnicodeDecodeError, TomlError) as error:
        message = f"reading the capture failed: {path}: {error}"
        raise CaptureError(message) from error
    except msgspec.ValidationError as error:
        message = f"invalid capture: {path}: {error}"
        raise CaptureError(message) from error


def read_moments(directory: Path) -> Iterator[CaptureMoment]:
    """Yield the moments of a capture, one after another.

    Raises CaptureError at a damaged line, and TruncatedCaptureError if that is the incomplete last one or
    if there is no line.
    """
    path = directory / "timeline.jsonl"
    number, line = 0, b""
    try:
        check_regular_file(path)
        with path.open("rb", buffering=READ_BYTES) as lines:
            # One byte more than the bound: a longer line is an error, and is not read whole.
            while line := lines.readline(MAX_LINE_BYTES + 1):
                number += 1
                yield CaptureMoment.from_line(line)
    except OSError as error:
        message = f"reading the capture failed: {path}: {error.strerror}"
        raise CaptureError(message) from error
    except ValueError as error:
        is_cut = len(line) <= MAX_LINE_BYTES and not line.endswith(b"\n")
        kind = TruncatedCaptureError if is_cut else CaptureError
        line_name = "incomplete last line" if is_cut else "damaged line"
        message = f"reading the capture failed: {path}: {line_name} {number}: {error}"
        raise kind(message) from error
    if not number:
        message = (
            f"reading the capture failed: {path}: empty file: expected a line for each timestamp"
        )
        raise TruncatedCaptureError(message)


class CaptureTimeline:
    """Recorded state of a node over time. Thread-safe."""

    def __init__(self, moments: Iterable[CaptureMoment]) -> None:
        self._moments = tuple(moments)
        self._lock = threading.Lock()
        self._rewind()

    def _rewind(self) -> None:
        self._next = 0
        self._state: dict[str, dict[str, Json]] = {section: {} for section in SECTIONS}

    def result_at(self, section: str, key: str, offset_ns: int) -> Json:
        """Return the latest result at or before this offset; raises KeyError if there is none."""
        with self._lock:
            # Reads of several threads may be out of order: an earlier time is reached from the start again.
            if self._next and offset_ns < self._moments[self._next - 1].offset_ns:
                self._rewind()
            while (
                self._next < len(self._moments) and self._moments[self._next].offset_ns <= offset_ns
            ):
                moment = self._moments[self._next]
                for name in SECTIONS:
                    self._state[name].update(getattr(moment, name))
                self._next += 1
            return self._state[section][key]

    def log_between(self, after_ns: int, until_ns: int) -> list[str]:
        """Return the kernel log records with offsets in (after, until]."""
        return [
            record
            for moment in self._moments
            if after_ns < moment.offset_ns <= until_ns
            for record in moment.log
        ]
