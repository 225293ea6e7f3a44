"""A host that answers from one moment of a capture after another, for programs that read a capture once."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import lru_cache
from itertools import compress, islice
from operator import is_not

from railscope import capture as capture_format
from railscope.capture import PENDING, result
from railscope_agent.host import Json
from railscope_agent.host.file_groups import PlainFiles
from railscope_agent.host.recorded_calls import (
    BATCH_FUNCTIONS,
    KERNEL_LOG,
    assemble_batch,
    call_key,
)
from railscope_agent.host.recorded_clock import RecordedClock

MAX_CACHED_KEYS = 1 << 14
"""More than the calls of a node in one sample."""

_SETTINGS = ("netlink.dcb(", "netlink.fec(", "netlink.pause(")
_JOB_FILES = ("job_files.",)
"""Calls about jobs: each part of a log has a key of its own, and none is a device."""
_COUNTS = {"statistics", "requests", "indications"}
"""Members of these answers about settings that are counters."""

# The same calls are repeated for each moment.
_cached_call_key = lru_cache(MAX_CACHED_KEYS)(call_key)


class SteppedHost:
    """Answers of a recorded node at one moment after another; earlier moments are not kept.

    Nothing waits, and its clock is that of the recording: the log and the samples have their recorded times.
    A call that was still pending in the recording fails with a timeout.
    """

    statistics_period_ns = 0

    def __init__(self, about: capture_format.CaptureMetadata) -> None:
        self.boot_id = about.boot_id
        self.clock = RecordedClock(about)
        self._state: dict[str, dict[str, Json]] = {
            section: {} for section in capture_format.SECTIONS
        }
        self._settings: set[str] = set()
        """Keys of the queries of settings so far."""
        self._log = SteppedKernelLog()
        self.used: set[str] = set()
        """Keys of the queries since the set was cleared."""

    def advance(self, moment: capture_format.CaptureMoment) -> bool:
        """Apply the differences of a moment; return True if devices may have come or gone.

        Then a directory or a link has changed, or there is an answer to a new query.
        """
        self.clock.go_to(moment.offset_ns)
        has_new_queries = bool(moment.names or moment.links)
        for section, answers in self._state.items():
            before = len(answers)
            answers.update(getattr(moment, section))
            # Dictionaries keep the order of insertion, so the new keys are the last ones.
            new = tuple(islice(reversed(answers), len(answers) - before))
            has_new_queries |= any(not key.startswith(_JOB_FILES) for key in new)
            self._settings.update(key for key in new if key.startswith(_SETTINGS))
        self._log.records += moment.log
        return has_new_queries

    def changed_keys(self, moment: capture_format.CaptureMoment) -> set[str]:
        """Return the keys of the files and calls that a moment changes, other than counts in settings."""
        before = self._state["calls"]
        same = {
            key
            for key in self._settings & moment.calls.keys()
            if _without_counts(moment.calls[key]) == _without_counts(before[key])
        }
        return (moment.calls.keys() | moment.files.keys()) - same

    def read(self, path: str) -> bytes:
        """Content of a file."""
        text: str = self._stored_answer("files", path)
        return text.encode(errors="surrogateescape")

    def names(self, path: str) -> list[str]:
        """Entries of a directory."""
        entries: list[str] = self._stored_answer("names", path)
        return entries

    def resolve(self, path: str) -> str:
        """Target of a path."""
        target: str = self._stored_answer("links", path)
        return target

    def open_file_group(self, paths: Sequence[str]) -> SteppedFiles:
        """Open a group of counter files."""
        return SteppedFiles(self, paths, self._state["files"])

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Result of a call."""
        if function not in BATCH_FUNCTIONS:
            key = _cached_call_key(host_interface, function, arguments)
            return self._stored_answer("calls", key)
        keys = _entry_keys(host_interface, function, arguments)
        self.used.update(keys)
        pairs: list[Json] = list(map(self._state["calls"].get, keys))
        if set(map(type, pairs)) == {list}:
            return [[value for _, value in pairs], [code for code, _ in pairs]]
        return assemble_batch(lambda key: self._stored_answer("calls", str(key)), keys)

    def _stored_answer(self, section: str, key: str) -> Json:
        self.used.add(key)
        try:
            stored = self._state[section][key]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, f"{key} is not in the capture") from None
        # Failures and pending queries are dictionaries: all other answers need no comparison.
        if type(stored) is not dict:
            return stored
        if stored == PENDING:
            raise TimeoutError(errno.ETIMEDOUT, f"{key} had not returned")
        return result(stored)

    def kernel_log(self) -> SteppedKernelLog:
        """The recorded kernel log. Raises OSError if it could not be read during the recording."""
        result(self._state["calls"].get(KERNEL_LOG))
        return self._log


def _without_counts(answer: Json) -> Json:
    if type(answer) is not dict:
        return answer
    return {key: _without_counts(member) for key, member in answer.items() if key not in _COUNTS}


@lru_cache(MAX_CACHED_KEYS)
def _entry_keys(
    host_interface: str, function: str, arguments: tuple[int | str, ...]
) -> tuple[str, ...]:
    device, *entries = arguments
    return tuple(call_key(host_interface, function, (device, entry)) for entry in entries)


class SteppedFiles(PlainFiles):
    """Files of a recorded node: their integers are parsed when their text has changed."""

    def __init__(self, host: SteppedHost, paths: Sequence[str], texts: dict[str, Json]) -> None:
        super().__init__(host.read, paths)
        self._host, self._stored, self._last = host, texts, [object()] * len(paths)
        self._values, self._reasons = [0] * len(paths), bytearray(len(paths))

    def read_into(self, values: list[int], reasons: bytearray, start: int) -> None:
        """Write the integers of all files; one that did not change has the same text object."""
        self._host.used.update(self._paths)
        texts = list(map(self._stored.get, self._paths))
        for index in compress(range(len(texts)), map(is_not, texts, self._last)):
            self.read_one(index, self._values, self._reasons, index)
        self._last = texts
        values[start : start + len(texts)] = self._values
        reasons[start : start + len(texts)] = self._reasons


class SteppedKernelLog:
    """Kernel log of a recorded node."""

    def __init__(self) -> None:
        self.records: list[str] = []
        """Records that were not polled yet."""

    def poll(self) -> list[str]:
        """Records since the last call."""
        records, self.records = self.records, []
        return records

    def close(self) -> None:
        """Do nothing: no file is held open."""
