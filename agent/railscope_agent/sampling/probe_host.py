"""Host of one probe: records the calls that failed, and those with a smaller answer than before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from railscope.reading import Absent
from railscope_agent.host import FileGroup, Host, HostWrapper, Json, NvmlError
from railscope_agent.sampling.answer_readings import reason_for
from railscope_agent.sampling.answer_sizes import AnswerSizes, answer_size, smaller_answer_error

_GONE_IF_EMPTY = ("netlink.module(",)
"""Calls that fail with ENODEV or ENXIO if the device works and its socket is empty."""
_FAILURES = {*Absent} - {Absent.UNSUPPORTED, Absent.NOT_DUE}
"""Reasons for which a call may hide a device; an unsupported call hides none."""

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call that failed during a probe, and the device names in its arguments."""

    key: str
    names: frozenset[str]
    reason: Absent
    repeat: Callable[[], object]
    is_incomplete: bool = False
    """True if the call raised nothing and returned less than before."""

    def has_changed(self) -> bool:
        """Repeat the call; true if it succeeds or fails for another reason."""
        try:
            self.repeat()
        except (OSError, NvmlError) as error:
            return reason_for(error) is not self.reason
        return True


class ProbeHost(HostWrapper):
    """A host that records the failed calls of a probe, and every name that occurred in it."""

    def __init__(self, host: Host, sizes: AnswerSizes) -> None:
        super().__init__(host)
        self._sizes = sizes
        self._is_recording = True
        self.failed_calls: dict[str, FailedCall] = {}
        self.succeeded_calls: set[int] = set()
        self.listed_paths: set[int] = set()
        self.mentioned_names: set[str] = set()

    def stop(self) -> None:
        """Stop recording; a source may use this host for its reads afterwards."""
        # A read after the probe is not one of its calls, and recording it would cost memory in every period.
        self._is_recording = False

    @property
    def machine(self) -> Host:
        """The underlying host."""
        return self._host

    def read(self, path: str) -> bytes:
        """Return the content of a small file."""

        def is_smaller(content: bytes) -> bool:
            now_ns = self.clock.now().boot_ns
            self.listed_paths.add(hash(path))
            return self._sizes.is_less(self._host, path, content, now_ns)

        return self._attempt(path, path.split("/"), lambda: self._host.read(path), is_smaller)

    def names(self, path: str) -> list[str]:
        """Return the entries of a directory."""

        def lacks_entries(entries: list[str]) -> bool:
            self.listed_paths.add(hash(path))
            return self._sizes.lacks_entries(self._host, path, entries)

        # The slash distinguishes a listing from a read of the same path.
        key, names = f"{path}/", path.split("/")
        entries = self._attempt(key, names, lambda: self._host.names(path), lacks_entries)
        if self._is_recording:
            self.mentioned_names.update(entries)
        return entries

    def resolve(self, path: str) -> str:
        """Return a path with all links followed."""
        return self._attempt(f"-> {path}", path.split("/"), lambda: self._host.resolve(path))

    def open_file_group(self, paths: Sequence[str]) -> FileGroup:
        """Return a group of files that are read often."""
        return self._host.open_file_group(paths)

    def call(self, host_interface: str, function: str, *arguments: int | str) -> Json:
        """Call a function of a host interface."""
        key = f"{host_interface}.{function}{arguments}"
        names = [device_name(host_interface, argument) for argument in arguments[:1]]

        def is_smaller(answer: Json) -> bool:
            now_ns = self.clock.now().boot_ns
            return self._sizes.is_smaller(key, (answer_size(key, answer),), now_ns)

        return self._attempt(
            key, names, lambda: self._host.call(host_interface, function, *arguments), is_smaller
        )

    def _attempt(
        self,
        key: str,
        names: Sequence[str],
        call: Callable[[], Answer],
        is_smaller: Callable[[Answer], bool] = lambda _: False,
    ) -> Answer:
        if not self._is_recording:
            return call()
        self.mentioned_names.update(names)
        try:
            answer = call()
        except (OSError, NvmlError) as error:
            reason = reason_for(error)
            nothing_there = reason is Absent.GONE and key.startswith(_GONE_IF_EMPTY)
            if (
                reason in _FAILURES
                and not nothing_there
                # A file that does not exist is a proof of absence, not a failure that hides a device.
                and not isinstance(error, FileNotFoundError)
            ):
                self.failed_calls[key] = FailedCall(key, frozenset(names), reason, call)
            raise
        if is_smaller(answer):
            # Repeating the bare call would succeed with the incomplete answer, and end the wait for the
            # complete one.
            repeat = partial(_repeat_call, key, call, is_smaller)
            self.failed_calls[key] = FailedCall(
                key, frozenset(names), Absent.ERROR, repeat, is_incomplete=True
            )
        else:
            self.succeeded_calls.add(hash(key))
        return answer


def _repeat_call(
    key: str, call: Callable[[], Answer], is_smaller: Callable[[Answer], bool]
) -> Answer:
    """Repeat a call; an answer that is still smaller than a complete one is an error."""
    answer = call()
    if is_smaller(answer):
        raise smaller_answer_error(key)
    return answer


def unwrap_host(host: Host) -> Host:
    """Return the host itself, without the recording of a probe."""
    return host.machine if isinstance(host, ProbeHost) else host


def failed_calls(host: Host) -> dict[str, FailedCall]:
    """Calls that have failed so far in the probe that uses this host."""
    return dict(host.failed_calls) if isinstance(host, ProbeHost) else {}


def repeat_failures(host: Host, failed: Mapping[str, FailedCall]) -> None:
    """Record the failures of an earlier probe, for a probe that reuses its result."""
    if isinstance(host, ProbeHost):
        host.failed_calls.update(failed)


def find_hidden(
    host: Host, before: Mapping[str, Answer], found: Mapping[str, Answer]
) -> dict[str, Answer]:
    """Return the earlier entries that a probe did not find, if calls of the probe have failed."""
    return {
        key: answer for key, answer in before.items() if key not in found and failed_calls(host)
    }


def device_name(host_interface: str, argument: int | str) -> str:
    """Return the name of a device in a call: NVML uses the GPU index, all others the argument itself."""
    return (
        f"nvml/{argument}"
        if host_interface == "nvml" and str(argument).isdecimal()
        else str(argument)
    )
