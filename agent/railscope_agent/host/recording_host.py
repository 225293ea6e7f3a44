"""A host that records the answers of another host."""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from railscope.capture import PENDING, CaptureMoment, NvmlError, failure
from railscope_agent.host import (
    FileGroup,
    Host,
    HostWrapper,
    Json,
    KernelLog,
    file_groups,
    recorded_host,
)
from railscope_agent.host.redactor import Redactor

Answer = TypeVar("Answer")

# Answers of one tick share a moment: a moment for each would multiply the size of a capture.
SAME_MOMENT_NS = 20_000_000
SLOW_NS = 500_000_000
"""Minimum delay of an answer for its query to be recorded as pending."""
_NEIGHBOUR_NAMES = ("chassis", "system", "system_description", "management_address")
# Values in the answers to a function that identify a node, a part, a switch or an owner.
_SECRETS: dict[str, Callable[[Json], list[Json]]] = {
    "nvmlDeviceGetSerial": lambda answer: [answer],
    "nvmlDeviceGetPlatformInfo": lambda answer: [answer.get("chassisSerialNumber", "")],
    "nvmlVgpuInstanceGetVmID": lambda answer: [answer[0]],
    "module": lambda answer: [answer["serial"]],
    "neighbours": lambda answer: [
        name
        for neighbour in answer.values()
        for name in (
            *(neighbour.get(key, "") for key in _NEIGHBOUR_NAMES),
            *neighbour.get("other_chassis", ()),
        )
    ],
}

_VIRTUAL_MACHINE_NAMES = ("name", "project", "project_id")
# Names of people and of their objects in the answers to a function: replaced as whole words.
_NAMES: dict[str, Callable[[Json], list[Json]]] = {
    "kubelet.List": lambda answer: [pod[part] for pod in answer for part in ("name", "namespace")],
    "kubelet.Pods": lambda answer: [pod[part] for pod in answer for part in ("name", "namespace")],
    "owner.environ": lambda answer: [
        answer.get(name, "") for name in ("SLURM_JOB_ACCOUNT", "SLURM_JOB_USER")
    ],
    "owner.container": lambda answer: [answer["name"], answer["label"]],
    "owner.domain": lambda answer: [answer[part] for part in _VIRTUAL_MACHINE_NAMES],
    "owner.machine": lambda answer: (
        [answer[part] for part in _VIRTUAL_MACHINE_NAMES] if answer else []
    ),
    "owner.user": lambda answer: [answer],
}
_SERIAL_FILE = re.compile(r"/sys/class/nvme/[^/]+/serial")


@dataclass(frozen=True, slots=True)
class _RecordedQuery:
    """Keys and start time of a query."""

    section: str
    keys: Sequence[str]
    offset_ns: int


class RecordingHost(HostWrapper):
    """Forward every query to a host and record the answers as moments of a capture.

    Secrets are replaced when the moments are read: a secret that is detected late may already be in
    earlier answers.
    """

    def __init__(self, host: Host, redactor: Redactor | None = None) -> None:
        super().__init__(host)
        self._redactor = redactor
        self._started_ns = host.clock.now().boot_ns
        self._last: dict[tuple[str, str], Json] = {}
        self._lock = threading.Lock()
        self._moments: list[CaptureMoment] = []
        self._log_kept: Counter[str] = Counter()
        self._under_way: dict[int, _RecordedQuery] = {}
        """Query of each thread that has no answer yet."""

    @property
    def moments(self) -> list[CaptureMoment]:
        """All answers so far, redacted by all secrets detected so far."""
        with self._lock:
            # A call that hangs until the end of the recording has to hang in the replay too.
            for query in self._under_way.values():
                self._waited_for(query)
            if self._redactor is None:
                return list(self._moments)
            return [self._redactor.redact_moment(moment) for moment in self._moments]

    def read(self, path: str) -> bytes:
        """Content of a small file."""
        answer = self._recorded_answer(
            "files", path, lambda: self._host.read(path).decode(errors="surrogateescape")
        )
        if self._redactor and _SERIAL_FILE.fullmatch(path):
            self._redactor.add_secret(answer.strip())
        return answer.encode(errors="surrogateescape")

    def names(self, path: str) -> list[str]:
        """Entries of a directory, sorted."""
        return self._recorded_answer("names", path, lambda: self._host.names(path))

    def resolve(self, path: str) -> str:
        """Path with all links followed."""
        return self._recorded_answer("links", path, lambda: self._host.resolve(path))

    def open_file_group(self, paths: Sequence[str]) -> FileGroup:
        """Open a group of counter files, read one by one so that their text can be recorded."""
        return file_groups.PlainFiles(self.read, paths)

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Call a function of a host interface, and record its answer."""
        if function in recorded_host.BATCH_FUNCTIONS:
            return self._batch(host_interface, function, arguments)
        key = recorded_host.call_key(host_interface, function, arguments)

        def call() -> Json:
            answer = self._host.call(host_interface, function, *arguments)
            if function in _SECRETS and self._redactor:
                for secret in _SECRETS[function](answer):
                    self._redactor.add_secret(str(secret))
            names_in = _NAMES.get(f"{host_interface}.{function}")
            if names_in and self._redactor:
                for name in names_in(answer):
                    self._redactor.add_name(str(name))
            return answer

        return self._recorded_answer("calls", key, call)

    def _batch(self, host_interface: str, function: str, arguments: Sequence[int | str]) -> Json:
        """Record the answer to each entry of a batch, or one failure for all of them."""
        device, *entries = arguments
        keys = [
            recorded_host.call_key(host_interface, function, (device, entry)) for entry in entries
        ]
        with self._query_lock("calls", keys):
            answer = self._host.call(host_interface, function, *arguments)
        for key, value, code in zip(keys, *answer, strict=True):
            self._store("calls", key, [code, value])
        return answer

    def kernel_log(self) -> KernelLog:
        """Follow the kernel log."""
        try:
            log = self._host.kernel_log()
        except OSError as error:
            self._store("calls", recorded_host.KERNEL_LOG, failure(error))
            raise
        self._store("calls", recorded_host.KERNEL_LOG, "")
        return _RecordingKernelLog(self, log)

    def _recorded_answer(self, section: str, key: str, call: Callable[[], Answer]) -> Answer:
        with self._query_lock(section, [key]):
            answer = call()
        self._store(section, key, answer)
        return answer

    @contextmanager
    def _query_lock(self, section: str, keys: Sequence[str]) -> Iterator[None]:
        """Record a failure for all keys, and the time during which there was no answer."""
        query = _RecordedQuery(section, keys, self._offset_ns)
        with self._lock:
            self._under_way[threading.get_ident()] = query
        failed: NvmlError | OSError | None = None
        try:
            yield
        except (NvmlError, OSError) as error:
            failed = error
            raise
        finally:
            with self._lock:
                self._waited_for(query)
                del self._under_way[threading.get_ident()]
            if failed:
                for key in keys:
                    self._store(section, key, failure(failed))

    def _waited_for(self, query: _RecordedQuery) -> None:
        """Record a query as pending from its start, if it has been waiting for long."""
        if self._offset_ns - query.offset_ns < SLOW_NS:
            return
        offsets = [moment.offset_ns for moment in self._moments]
        place = bisect_right(offsets, query.offset_ns)
        if not place or offsets[place - 1] != query.offset_ns:
            self._moments.insert(place, CaptureMoment(query.offset_ns))
            place += 1
        for key in query.keys:
            getattr(self._moments[place - 1], query.section)[key] = PENDING
            self._last[query.section, key] = PENDING

    def _store(self, section: str, key: str, answer: Json) -> None:
        with self._lock:
            # `self` equals no answer, so that a first answer of None is recorded as well.
            if self._last.get((section, key), self) == answer:
                return
            self._last[section, key] = answer
            getattr(self._moment(), section)[key] = answer

    def record_log(self, records: list[str], occurrences: Counter[str]) -> None:
        """Record kernel log records, except those that an earlier opening returned as well.

        `occurrences` counts the records of this opening: each opening starts at the oldest record.
        """
        with self._lock:
            for record in records:
                occurrences[record] += 1
                # Counted, and not a set: identical records occur, and each has to be replayed.
                if occurrences[record] > self._log_kept[record]:
                    self._log_kept[record] += 1
                    self._moment().log.append(record)

    @property
    def _offset_ns(self) -> int:
        return self._host.clock.now().boot_ns - self._started_ns

    def _moment(self) -> CaptureMoment:
        offset_ns = self._offset_ns
        if not self._moments:
            self._moments.append(CaptureMoment(0))
        if offset_ns - self._moments[-1].offset_ns > SAME_MOMENT_NS:
            self._moments.append(CaptureMoment(offset_ns))
        return self._moments[-1]


class _RecordingKernelLog:
    def __init__(self, host: RecordingHost, log: KernelLog) -> None:
        self._host = host
        self._log = log
        self._occurrences: Counter[str] = Counter()

    def poll(self) -> list[str]:
        records = self._log.poll()
        self._host.record_log(records, self._occurrences)
        return records

    def close(self) -> None:
        self._log.close()
