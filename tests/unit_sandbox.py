"""Runs a program under the restrictions of a systemd unit, without systemd.

`python tests/unit_sandbox.py UNIT COMMAND...` applies the unit's system call filter, its socket
families and its ban on memory that is writable and executable, through libseccomp and prctl(2) as
systemd does, and becomes the command. User, mounts and capabilities stay as they are.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LIBRARY = "libseccomp.so.2"
_NO_NEW_PRIVILEGES, _SET_MDWE, _REFUSE_EXEC_GAIN = 38, 65, 1  # linux/prctl.h
_ALLOW, _FAIL_WITH, _EQUAL = 0x7FFF0000, 0x00050000, 4  # seccomp.h
_MEMBER = re.compile(r"    (@?\w[\w-]*)$")


class _Compare(ctypes.Structure):
    """struct scmp_arg_cmp of seccomp.h."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def directives(unit: Path, name: str) -> list[str]:
    """Every value that a unit gives to a directive, in order."""
    lines = (line.partition("=") for line in unit.read_text().splitlines())
    return [value for key, _, value in lines if key == name]


def allowed_calls(unit: Path) -> set[str]:
    """The system calls that the filter of a unit leaves."""
    command = ["systemd-analyze", "syscall-filter"]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    sets: dict[str, set[str]] = {}
    members: set[str] = set()
    for line in listing.splitlines():
        if line.startswith("@"):
            members = sets.setdefault(line.strip(), set())
        elif match := _MEMBER.match(line):
            members.add(match[1])
    allowed = set(_expanded("@default", sets))
    for value in directives(unit, "SystemCallFilter"):
        calls = {
            call for argument in value.lstrip("~").split() for call in _expanded(argument, sets)
        }
        allowed = allowed - calls if value.startswith("~") else allowed | calls
    return allowed


def _expanded(argument: str, sets: dict[str, set[str]]) -> Iterator[str]:
    if not argument.startswith("@"):
        yield argument
    for member in sets.get(argument, ()):
        yield from _expanded(member, sets)


def restrict(unit: Path) -> None:
    """Restrict this process permanently. Raises OSError."""
    seccomp, libc = ctypes.CDLL(LIBRARY), ctypes.CDLL(None)
    seccomp.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(seccomp.seccomp_init(_FAIL_WITH | errno.EPERM))
    for call in allowed_calls(unit) - {"socket"}:
        number = seccomp.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:
            _check(seccomp.seccomp_rule_add_array(context, _ALLOW, number, 0, None))
    number = seccomp.seccomp_syscall_resolve_name(b"socket")
    for family in " ".join(directives(unit, "RestrictAddressFamilies")).split():
        equal = ctypes.byref(_Compare(0, _EQUAL, getattr(socket, family), 0))
        _check(seccomp.seccomp_rule_add_array(context, _ALLOW, number, 1, equal))
    if directives(unit, "MemoryDenyWriteExecute") == ["yes"]:
        libc.prctl(_SET_MDWE, _REFUSE_EXEC_GAIN, 0, 0, 0)  # fails on kernels before 6.3
    _check(libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _check(seccomp.seccomp_load(context))


def _check(answer: int) -> None:
    if answer < 0:
        raise OSError(-answer, os.strerror(-answer))


if __name__ == "__main__":
    restrict(Path(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - to become the command is the purpose
