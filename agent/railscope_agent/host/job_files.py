"""Files that jobs write for the agent, and users, ranks, jobs and starts of their processes.

Jobs name, replace, grow and remove these files at any time. Links are not followed, nothing but regular files is opened,
opening never waits, and the number of entries and of bytes is bounded. The owner is that of the opened file.

A launcher sets the rank in the environment of each process: torchrun, Slurm, Open MPI. A process may change its own: a file
is attributed only to a process of the user that owns the file.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import msgspec

from railscope.capture import Json
from railscope.timestamps import SECOND_NS
from railscope_agent.collectives import CollectiveFormatError, flight_recorder, inspector
from railscope_agent.host.files import RootedFiles

MAX_ENTRIES = 16_384
"""Maximum number of directory entries of one listing."""
MAX_JOB_ENTRIES = 2048
"""Maximum number of entries of one job in it, so that a job cannot hide the files of others."""
MAX_DUMP_BYTES = 8 << 20
_RANK_FILE = re.compile(r".{0,200}?(?<!\d)(\d{1,7})(?:\.(?:json|pickle|pkl))?", re.DOTALL)
_INSPECTOR_FILE = re.compile(r".{1,200}-pid([1-9]\d{0,9})\.log", re.DOTALL | re.ASCII)
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
# O_NONBLOCK: opening a pipe without a writer would never return; O_NOCTTY: a terminal must not become the
# agent's.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY


RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
"""Variables with the rank, those of the innermost launcher first.

torchrun starts processes below all others. What mpirun starts in a job of Slurm inherits SLURM_PROCID from the batch script
(0) or from the daemon of MPI on its node.
"""
JOB_VARIABLES = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID")
MAX_RANK_DIGITS, MAX_JOB_NAME = 7, 128
_START_FIELD = 22 - 3
"""Index of `starttime` after the name of the program, which can contain spaces and brackets."""
_USER = re.compile(rb"^Uid:\s+(\d{1,10})\s", re.MULTILINE)
_OWN_PID = re.compile(rb"^NSpid:(?:\s+\d{1,10})*\s+(\d{1,10})$", re.MULTILINE)


class RankProcess(msgspec.Struct, frozen=True, omit_defaults=True):
    """User of a process as the agent's namespace numbers it, its rank, and the names of its job.

    `own_pid` is the number of the process in its own namespace, `started_ns` its start on the boot clock; 0 if unknown.
    """

    user: int
    rank: int | None = None
    jobs: list[str] = []
    own_pid: int = 0
    started_ns: int = 0


def parse_rank_process(
    status: bytes, environment: bytes, started_ns: int = 0
) -> RankProcess | None:
    """Parse /proc/PID/status and /proc/PID/environ (proc(5)); None if the status has no user."""
    user = _USER.search(status)
    if user is None:
        return None
    variables: dict[str, str] = {}
    for entry in environment.split(b"\0"):
        name, equals, value = entry.decode(errors="backslashreplace").partition("=")
        if equals and name in RANK_VARIABLES + JOB_VARIABLES:
            # getenv(3) returns the first of several entries with one name.
            variables.setdefault(name, value)
    ranks = [text for name in RANK_VARIABLES if (text := variables.get(name, "")) and is_rank(text)]
    jobs = [variables[name][:MAX_JOB_NAME] for name in JOB_VARIABLES if variables.get(name)]
    own_pid = _OWN_PID.search(status)
    return RankProcess(
        int(user[1]),
        int(ranks[0]) if ranks else None,
        jobs,
        int(own_pid[1]) if own_pid else 0,
        started_ns,
    )


def is_rank(text: str) -> bool:
    """True if a text is a rank in digits."""
    return text.isascii() and text.isdecimal() and len(text) <= MAX_RANK_DIGITS


class JobFile(msgspec.Struct, frozen=True):
    """File of a job; `job` is the name of its directory, empty for one directly in the configured directory.

    `subject` is the rank in its name, or the number of the process in its own namespace.
    """

    job: str
    name: str
    subject: str
    user: int
    bytes: int
    modified_ns: int
    inode: int
    is_regular: bool


class JobFileListing(msgspec.Struct, frozen=True):
    """Files of jobs; `is_complete` is False if there are more entries than the bound."""

    files: list[JobFile] = []
    is_complete: bool = True


class OpenedDump(msgspec.Struct, frozen=True):
    """A dump of a flight recorder with the owner and time of the opened file."""

    user: int
    modified_ns: int
    dump: flight_recorder.FlightRecorderDump


class OpenedLog(msgspec.Struct, frozen=True):
    """Part of a log of NCCL Inspector with the owner and inode of the opened file."""

    user: int
    inode: int
    part: inspector.InspectorPart


class JobFileCalls:
    """The host interface "job_files"."""

    def __init__(self, files: RootedFiles, max_entries: int = MAX_ENTRIES) -> None:
        self._files = files
        self._max_entries = max_entries
        self._functions: dict[str, Callable[..., object]] = {
            "list": partial(self._list, pattern=_RANK_FILE),
            "list_inspector": partial(self._list, pattern=_INSPECTOR_FILE),
            "flight_recorder": self._flight_recorder,
            "inspector_log": self._inspector_log,
            "process": self._process,
        }

    def call(self, function: str, *arguments: int | str) -> Json:
        """Return the answer of a call. Raises OSError.

        job_files.list(directory)                              dumps of ranks in it and in its directories
        job_files.list_inspector(directory)                    logs of NCCL Inspector, likewise
        job_files.flight_recorder(directory, job, name)        a dump; EBADMSG if malformed, EFBIG if too large
        job_files.inspector_log(directory, job, name, offset)  part of a log from an offset
        job_files.process(pid)                                 user, rank, names of the job, and start of a process
        """
        return msgspec.to_builtins(self._functions[function](*arguments))

    def _list(self, directory: str, pattern: re.Pattern[str]) -> JobFileListing:
        found: list[JobFile] = []
        with _opened(os.open(self._files.real(directory), _DIRECTORY)) as top:
            entries = list(_entries(top, self._max_entries))
            remaining = self._max_entries - len(entries)
            is_complete = remaining > 0
            found += _job_files("", entries, pattern)
            # The newest first: where jobs have more entries than the bound, it is the old ones that are left out.
            entries.sort(key=lambda entry: -entry[1].st_mtime_ns)
            for job, status in entries:
                limit = min(remaining, MAX_JOB_ENTRIES)
                if not stat.S_ISDIR(status.st_mode):
                    continue
                try:
                    inner = _directory_entries(top, job, limit)
                except OSError:
                    continue  # removed, replaced by a link, or private
                is_complete &= len(inner) < limit
                remaining -= len(inner)
                found += _job_files(job, inner, pattern)
        return JobFileListing(found, is_complete)

    def _flight_recorder(self, directory: str, job: str, name: str) -> OpenedDump:
        with self._opened_file(directory, job, name) as (opened, status):
            content = _read_bounded(opened, MAX_DUMP_BYTES)
        try:
            dump = flight_recorder.parse_dump(content)
        except CollectiveFormatError as error:
            raise OSError(errno.EBADMSG, str(error)) from error
        return OpenedDump(status.st_uid, status.st_mtime_ns, dump)

    def _inspector_log(self, directory: str, job: str, name: str, offset: int) -> OpenedLog:
        with self._opened_file(directory, job, name) as (opened, status):
            # One byte before the offset: whether a line begins there shows in the character before it.
            content = os.pread(opened, inspector.MAX_PART_BYTES, max(offset - 1, 0))
        return OpenedLog(status.st_uid, status.st_ino, inspector.parse_part(content, offset))

    @contextmanager
    def _opened_file(
        self, directory: str, job: str, name: str
    ) -> Iterator[tuple[int, os.stat_result]]:
        """Open a regular file of a job. Raises OSError; with EINVAL for anything else."""
        with self._opened_parent(directory, job, name) as parent:
            # A device that a job placed there may react to being opened.
            if not stat.S_ISREG(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            # Relative to the opened directory: a job may replace the directory by a link meanwhile.
            descriptor = os.open(name, _FILE, dir_fd=parent)
        with _opened(descriptor) as opened:
            status = os.fstat(opened)
            # Checked again on the opened file: the name may have been replaced since the first check.
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "not a regular file")
            yield opened, status

    @contextmanager
    def _opened_parent(self, directory: str, job: str, name: str) -> Iterator[int]:
        """Open the directory of a file of a job, following no link of the job. Raises OSError."""
        if "/" in job + name or job in {".", ".."}:
            raise OSError(errno.EINVAL, "expected names without a slash")
        with _opened(os.open(self._files.real(directory), _DIRECTORY)) as top:
            descriptor = (
                os.open(job, _DIRECTORY | os.O_NOFOLLOW, dir_fd=top) if job else os.dup(top)
            )
        with _opened(descriptor) as parent:
            yield parent

    def _started_ns(self, pid: int) -> int:
        """Return the start of a process on the boot clock (proc_pid_stat(5)). Raises OSError."""
        fields = self._files.read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return int(fields[_START_FIELD]) * (SECOND_NS // os.sysconf("SC_CLK_TCK"))

    def _process(self, pid: int) -> RankProcess | None:
        started_ns = self._started_ns(pid)
        status = self._files.read(f"/proc/{pid}/status")
        try:
            environment = self._files.read(f"/proc/{pid}/environ")
        except PermissionError:
            environment = b""  # its user is known nevertheless
        return parse_rank_process(status, environment, started_ns)


@contextmanager
def _opened(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _entries(directory: int, limit: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield at most `limit` entries of an open directory."""
    with os.scandir(directory) as entries:
        for _, entry in zip(range(limit), entries, strict=False):
            try:
                yield entry.name, entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue  # removed since


def _directory_entries(top: int, job: str, limit: int) -> list[tuple[str, os.stat_result]]:
    """Return at most `limit` entries of the directory of a job. Raises OSError, also for a link."""
    descriptor = os.open(job, _DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
    with _opened(descriptor) as of_job:
        return list(_entries(of_job, limit))


def _job_files(
    job: str, entries: list[tuple[str, os.stat_result]], pattern: re.Pattern[str]
) -> Iterator[JobFile]:
    for name, status in entries:
        match = pattern.fullmatch(name)
        if match and not stat.S_ISDIR(status.st_mode):
            yield JobFile(
                job,
                name,
                match[1],
                status.st_uid,
                status.st_size,
                status.st_mtime_ns,
                status.st_ino,
                # A hard link may be to a file of another user.
                stat.S_ISREG(status.st_mode) and status.st_nlink == 1,
            )


def _read_bounded(descriptor: int, limit: int) -> bytes:
    """Return the content of a file. Raises OSError with EFBIG beyond the limit."""
    parts, length = [], 0
    # Not the size of fstat(2): the file may grow while it is read.
    while part := os.read(descriptor, min(limit + 1 - length, 1 << 20)):
        parts.append(part)
        length += len(part)
        if length > limit:
            raise OSError(errno.EFBIG, f"more than {limit} bytes")
    return b"".join(parts)
