"""A network namespace for one test: private interfaces, which are removed with it."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

_NEW_NETWORK = 0x40000000  # linux/sched.h, CLONE_NEWNET
_NO_IPV6 = Path("/proc/sys/net/ipv6/conf/default/disable_ipv6")
PATIENCE_SECONDS = 60
_OWN = "/proc/thread-self/ns/net"


@contextmanager
def network_namespace() -> Iterator[None]:
    """Move this thread, and its children, into a new network namespace. Skips if not permitted."""
    libc = ctypes.CDLL(None, use_errno=True)
    home = os.open(_OWN, os.O_RDONLY)
    try:
        if libc.unshare(_NEW_NETWORK):
            reason = os.strerror(ctypes.get_errno())
            pytest.skip(f"a network namespace cannot be made here: {reason}")
        try:
            # Without IPv6 addresses only the test sends packets.
            if _NO_IPV6.exists():
                _NO_IPV6.write_text("1")
            yield
        finally:
            if libc.setns(home, _NEW_NETWORK):
                reason = os.strerror(ctypes.get_errno())
                pytest.exit(f"there is no way back from a network namespace: {reason}")
    finally:
        os.close(home)


def ip(*arguments: str) -> Any:
    """Run the command ip; return its -json output. Skips if the command is missing."""
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("the command ip is missing: install the Debian package iproute2")
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr}"
    return json.loads(done.stdout) if "-json" in arguments else None


def veth_pair(one: str, other: str) -> None:
    """Make a pair of virtual interfaces, and set both up."""
    ip("link", "add", "name", one, "type", "veth", "peer", "name", other)
    for name in (one, other):
        ip("link", "set", name, "up")
    comes_true(lambda: {state(one), state(other)} == {"UP"})


def state(name: str) -> str:
    """Return the operational state of an interface, as printed by ip."""
    (link,) = ip("-json", "link", "show", name)
    return str(link["operstate"])


def comes_true(condition: Callable[[], bool]) -> None:
    """Wait for an asynchronous change in the kernel, such as operational states."""
    deadline, pause = time.monotonic() + PATIENCE_SECONDS, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the kernel does not do it"
        pause.wait(0.01)
