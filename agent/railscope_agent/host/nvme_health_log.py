"""Health log of NVMe drives, read by the ioctl of an admin command.

Sources: linux UAPI include/uapi/linux/nvme_ioctl.h; NVM Express base specification, SMART / Health Information log (page 0x02).
"""

from __future__ import annotations

import array
import errno
import fcntl
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
_CONTROLLER_NAME = re.compile(r"nvme\d+")
_HEAD = struct.Struct("<BHBBB")
_COUNTS = (
    "data_units_read", "data_units_written", "host_reads", "host_writes", "busy_minutes",
    "power_cycles", "power_on_hours", "unsafe_shutdowns", "media_errors", "logged_errors",
)  # fmt: skip
_COUNTS_AT, _COUNT_BYTES = 32, 16
_TIMES = struct.Struct("<II")
_TIMES_AT = 192


def decode_health_log(log: bytes) -> dict[str, int]:
    """Numbers of a health log in the drive's own units: kelvins, percent, minutes, hours.

    Raises OSError with EIO if the log is too short.
    """
    if len(log) < LOG_BYTES:
        raise OSError(errno.EIO, f"health log too short: {len(log)} bytes")
    warning, kelvins, spare, spare_limit, used = _HEAD.unpack_from(log)
    readings = {
        "critical_warning": warning,
        "temperature_kelvins": kelvins,
        "spare_percent": spare,
        "spare_limit_percent": spare_limit,
        "used_percent": used,
    }
    for position, name in enumerate(_COUNTS):
        start = _COUNTS_AT + position * _COUNT_BYTES
        readings[name] = int.from_bytes(log[start : start + _COUNT_BYTES], "little")
    readings["warm_minutes"], readings["hot_minutes"] = _TIMES.unpack_from(log, _TIMES_AT)
    return readings


def call_nvme(function: str, controller: str) -> Json:
    """Return "smart", the health log, of a controller of this node such as nvme0. Raises OSError."""
    if function != "smart" or not _CONTROLLER_NAME.fullmatch(controller):
        message = f"invalid NVMe controller {controller!r}: expected a name such as nvme0"
        raise OSError(errno.ENODEV, message)
    with open(f"/dev/{controller}", "rb", buffering=0) as device:  # noqa: PTH123 - a device
        return decode_health_log(read_health_log(device.fileno()))


def command_error(status: int) -> OSError:
    """Error for the status of a command: no such log (EOPNOTSUPP), or unreadable (EIO)."""
    number = errno.EOPNOTSUPP if status & _STATUS in _NO_SUCH_LOG else errno.EIO
    return OSError(number, f"the drive returned NVMe status {status:#x}")


def read_health_log(descriptor: int) -> bytes:
    """Health log of the drive of a descriptor. Raises OSError, also if it is not a drive.

    Sources: linux UAPI include/uapi/linux/nvme_ioctl.h (struct nvme_passthru_cmd); NVM Express base
    specification, Get Log Page command and SMART / Health Information log (page 0x02). The ioctl
    requires CAP_SYS_ADMIN. The command runs with the kernel's own timeout: if a shorter one expired,
    the kernel would reset the drive.
    """
    buffer = array.array("B", bytes(LOG_BYTES))
    address, _ = buffer.buffer_info()
    length = LOG_BYTES // 4 - 1  # in units of four bytes, counted from 0
    data = (address, 0, LOG_BYTES)
    command = bytearray(
        _COMMAND.pack(
            *(_GET_LOG_PAGE, 0, 0, _ALL_NAMESPACES, 0, 0, 0),
            *data,
            *(_HEALTH_PAGE | length << 16, 0, 0, 0, 0, 0, 0, 0),
        )
    )
    status = fcntl.ioctl(descriptor, _NVME_IOCTL_ADMIN_CMD, command)
    if status:
        raise command_error(status)
    return buffer.tobytes()
