"""Kernel log of the live node: /dev/kmsg, or a file of records in a copied tree.

Format: Documentation/ABI/testing/dev-kmsg.
"""

from __future__ import annotations

import os
import stat

from railscope_agent.host import MAX_LOG_RECORDS_PER_POLL

KMSG_PATH = "/dev/kmsg"
STANDARD_INPUT = 0
_KMSG = (1, 11)
"""Major and minor number of /dev/kmsg, Documentation/admin-guide/devices.txt."""
# A read into a buffer smaller than the record fails with EINVAL; the longest is CONSOLE_EXT_LOG_MAX of
# printk.h.
_RECORD_BYTES = 8192


class LiveKernelLog:
    """Follow /dev/kmsg without blocking. Raises OSError if it cannot be opened.

    The log is /dev/kmsg, or a file of records in a copied tree. Format:
    Documentation/ABI/testing/dev-kmsg. One read returns one record; EAGAIN means that all records were
    read, EPIPE that records were overwritten before they were read: reading continues with the oldest
    remaining record, and the gap is visible in the sequence numbers.
    """

    def __init__(self, path: str, handed_over: int = STANDARD_INPUT) -> None:
        self._descriptor = _inherited_log(path, handed_over)
        if self._descriptor < 0:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self._is_device = stat.S_ISCHR(os.fstat(self._descriptor).st_mode)
        self._left_over = b""

    def poll(self) -> list[str]:
        """Records since the last call, oldest first; a flood is returned in several calls."""
        return self._poll_device() if self._is_device else self._poll_file()

    def _poll_device(self) -> list[str]:
        records: list[str] = []
        while len(records) < MAX_LOG_RECORDS_PER_POLL:
            try:
                record = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue
            if not record:
                break
            records.append(record.decode(errors="replace").rstrip("\n"))
        return records

    def _poll_file(self) -> list[str]:
        text = self._left_over + b"".join(iter(lambda: os.read(self._descriptor, 1 << 16), b""))
        # A line may be written in parts: the last one waits for its end.
        *lines, self._left_over = text.split(b"\n")
        return [line.decode(errors="replace") for line in lines if line]

    def close(self) -> None:
        """Close the log."""
        os.close(self._descriptor)


def _inherited_log(path: str, descriptor: int) -> int:
    """The log as opened by systemd (StandardInput=file:), from its oldest record; -1 without it.

    Opening the kernel log may need CAP_SYSLOG (dmesg_restrict); reading from it does not.
    """
    if path != KMSG_PATH:
        return -1
    try:
        if os.fstat(descriptor).st_rdev != os.makedev(*_KMSG):
            return -1
        duplicate = os.dup(descriptor)
        # This affects the descriptor of systemd as well; nothing else reads standard input.
        os.set_blocking(duplicate, False)
        os.lseek(duplicate, 0, os.SEEK_SET)
    except OSError:
        return -1
    return duplicate
