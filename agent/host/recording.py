"""A machine that is asked as usual, and whose answers are written down."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from agent.host import Clock, Host, Json, KeptFiles, KernelLog
from agent.host.files import PlainFiles
from agent.host.recorded import KERNEL_LOG, call_key
from railscope.capture import Moment, failure

Answer = TypeVar("Answer")

SAME_MOMENT_NS = 20_000_000
_IDENTIFIERS = re.compile(
    r"(?P<uuid>(?:GPU-|MIG-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"|(?P<guid>\b(?:[0-9a-f]{4}:){3,7}[0-9a-f]{4}\b)"
    r"|(?P<mac>\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b)",
    re.IGNORECASE,
)


class Redactor:
    """Replaces names and serial numbers, each by the same made-up one wherever it stands."""

    def __init__(self, words: Sequence[str] = ()) -> None:
        self._words = [re.compile(re.escape(word)) for word in words if word]

    def learn(self, word: str) -> None:
        """From now on, replace this word too: a serial number, say."""
        if word:
            self._words.append(re.compile(re.escape(word)))

    def text(self, text: str) -> str:
        """The text with every identifier replaced by one of the same form."""
        for word in self._words:
            text = word.sub(lambda match: "x" + _digest(match[0])[:7], text)
        return _IDENTIFIERS.sub(lambda match: _same_form(match[0]), text)

    def json(self, value: Json) -> Json:
        """The same for every string in a JSON value."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(item) for item in value]
        if isinstance(value, dict):
            return {key: self.json(item) for key, item in value.items()}
        return value


def _digest(word: str) -> str:
    return hashlib.sha256(word.lower().encode()).hexdigest()


def _same_form(identifier: str) -> str:
    kept = identifier[:4] if identifier.startswith(("GPU-", "MIG-")) else ""
    fresh = iter(_digest(identifier))
    return kept + "".join(c if c in "-:" else next(fresh) for c in identifier[len(kept) :])


class RecordingHost:
    """Passes every question on to a host and keeps the answers as moments of a capture."""

    def __init__(self, host: Host, redactor: Redactor | None = None) -> None:
        self._host = host
        self._redactor = redactor
        self._started_ns = host.clock.now().boot_ns
        self._last: dict[tuple[str, str], Json] = {}
        self._lock = threading.Lock()
        self.moments: list[Moment] = []

    @property
    def clock(self) -> Clock:
        """The clock of the host."""
        return self._host.clock

    @property
    def boot_id(self) -> str:
        """The boot id of the host."""
        return self._host.boot_id

    def read(self, path: str) -> bytes:
        """The content of a small file."""
        answer = self._asked(
            "files",
            path,
            lambda: self._host.read(path).decode(errors="surrogateescape"),
        )
        return answer.encode(errors="surrogateescape")

    def names(self, path: str) -> list[str]:
        """The entries of a folder, sorted."""
        return self._asked("names", path, lambda: self._host.names(path))

    def resolve(self, path: str) -> str:
        """A path with all links followed."""
        return self._asked("links", path, lambda: self._host.resolve(path))

    def keep(self, paths: Sequence[str]) -> KeptFiles:
        """A group of counter files, read one by one so that their text can be kept."""
        return PlainFiles(self.read, paths)

    def call(self, seam: str, function: str, *arguments: int | str) -> Json:
        """Ask NVML, ethtool or psutil."""
        key = call_key(seam, function, arguments)

        def ask() -> Json:
            answer = self._host.call(seam, function, *arguments)
            if function == "nvmlDeviceGetSerial" and self._redactor:
                self._redactor.learn(str(answer))
            return answer

        return self._asked("calls", key, ask)

    def kernel_log(self) -> KernelLog:
        """Follow the kernel log."""
        try:
            log = self._host.kernel_log()
        except OSError as error:
            self._keep("calls", KERNEL_LOG, failure(error))
            raise
        self._keep("calls", KERNEL_LOG, "")
        return _RecordingKernelLog(self, log)

    def _asked(self, section: str, key: str, ask: Callable[[], Answer]) -> Answer:
        try:
            answer = ask()
        except Exception as error:
            self._keep(section, key, failure(error))
            raise
        self._keep(section, key, answer)
        return answer

    def _keep(self, section: str, key: str, answer: Json) -> None:
        kept = self._redactor.json(answer) if self._redactor else answer
        with self._lock:
            if self._last.get((section, key), self) == kept:
                return
            self._last[section, key] = kept
            getattr(self._moment(), section)[key] = kept

    def keep_log(self, records: list[str]) -> None:
        """Keep records of the kernel log."""
        if records:
            kept = [self._redactor.text(r) for r in records] if self._redactor else records
            with self._lock:
                self._moment().log.extend(kept)

    def _moment(self) -> Moment:
        offset_ns = self._host.clock.now().boot_ns - self._started_ns
        if not self.moments:
            self.moments.append(Moment(0))
        if offset_ns - self.moments[-1].offset_ns > SAME_MOMENT_NS:
            self.moments.append(Moment(offset_ns))
        return self.moments[-1]


class _RecordingKernelLog:
    def __init__(self, host: RecordingHost, log: KernelLog) -> None:
        self._host = host
        self._log = log

    def poll(self) -> list[str]:
        records = self._log.poll()
        self._host.keep_log(records)
        return records
