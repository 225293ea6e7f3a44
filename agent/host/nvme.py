"""Health log of NVMe drives, by ioctl and without a subprocess.

Sources: linux UAPI include/uapi/linux/nvme_ioctl.h (struct nvme_passthru_cmd); NVM Express base
specification, Get Log Page command and SMART / Health Information log (page 0x02). The kernel
requires CAP_SYS_ADMIN for it. The command runs with the kernel's own timeout: if a shorter one
expired, the kernel would reset the drive.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import re
import struct

from railscope.capture import Json

_NVME_IOCTL_ADMIN_CMD = 0xC0484E41
_GET_LOG_PAGE, _HEALTH_PAGE, _ALL_NAMESPACES = 0x02, 0x02, 0xFFFFFFFF
LOG_BYTES = 512
_STATUS = 0x7FF
_NO_SUCH_LOG = {0x001, 0x002, 0x109}  # Invalid Command Opcode, Invalid Field, Invalid Log Page
_COMMAND = struct.Struct("=BBHIIIQQIIIIIIIIII")
"""opcode, flags, -, namespace, cdw2-3, metadata, data, their lengths, cdw10-15, timeout, result."""
_NAME = re.compile(r"nvme\d+")
_HEAD = struct.Struct("<BHBBB")
_COUNTS = (
    "data_units_read", "data_units_written", "host_reads", "host_writes", "busy_minutes",
    "power_cycles", "power_on_hours", "unsafe_shutdowns", "media_errors", "logged_errors",
)  # fmt: skip
_COUNTS_AT, _COUNT_BYTES = 32, 16
_TIMES = struct.Struct("<II")
_TIMES_AT = 192


def decode(log: bytes) -> dict[str, int]:
    """Numbers of a health log in the drive's own units: kelvins, percent, minutes, hours.

    Raises OSError with EIO if the log is too short.
    """
    if len(log) < LOG_BYTES:
        raise OSError(errno.EIO, f"a health log of {len(log)} bytes is too short")
    warning, kelvins, spare, spare_limit, used = _HEAD.unpack_from(log)
    found = {
        "critical_warning": warning,
        "temperature_kelvins": kelvins,
        "spare_percent": spare,
        "spare_limit_percent": spare_limit,
        "used_percent": used,
    }
    for position, name in enumerate(_COUNTS):
        start = _COUNTS_AT + position * _COUNT_BYTES
        found[name] = int.from_bytes(log[start : start + _COUNT_BYTES], "little")
    found["warm_minutes"], found["hot_minutes"] = _TIMES.unpack_from(log, _TIMES_AT)
    return found


class Nvme:
    """Health logs of the drives of this node. Raises OSError."""

    def call(self, function: str, controller: str) -> Json:
        """Return "smart" of a controller such as nvme0."""
        if function != "smart" or not _NAME.fullmatch(controller):
            raise OSError(errno.ENODEV, f"{controller} is no NVMe controller")
        return decode(self._health_log(f"/dev/{controller}"))

    def _health_log(self, path: str) -> bytes:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return ask_health(descriptor)
        finally:
            os.close(descriptor)


def refusal(status: int) -> OSError:
    """Error for the status of a command: no such log (EOPNOTSUPP), or unreadable (EIO)."""
    number = errno.EOPNOTSUPP if status & _STATUS in _NO_SUCH_LOG else errno.EIO
    return OSError(number, f"the drive answers with NVMe status {status:#x}")


def ask_health(descriptor: int) -> bytes:
    """Health log of the drive of a descriptor. Raises OSError, also if it is not a drive."""
    buffer = array.array("B", bytes(LOG_BYTES))
    address, _ = buffer.buffer_info()
    words = LOG_BYTES // 4 - 1
    command = bytearray(
        _COMMAND.pack(
            _GET_LOG_PAGE, 0, 0, _ALL_NAMESPACES, 0, 0, 0, address, 0, LOG_BYTES,
            _HEALTH_PAGE | words << 16, 0, 0, 0, 0, 0, 0, 0,
        )
    )  # fmt: skip
    status = fcntl.ioctl(descriptor, _NVME_IOCTL_ADMIN_CMD, command)
    if status:
        raise refusal(status)
    return buffer.tobytes()
