"""An S3-compatible server for tests, in its own process."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import pytest

from bench.harness import free_port

START_SECONDS = 60
CREDENTIALS = "test-access-key\ntest-secret-key\n"


@contextmanager
def running() -> Iterator[str]:
    """Run a server and return its URL; skips if it is not installed."""
    for module in ("moto", "flask", "obstore"):
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(process, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(START_SECONDS)


def create_bucket(url: str, name: str) -> None:
    """Create a bucket; the server does not check signatures."""
    request = urllib.request.Request(f"{url}/{name}", method="PUT")  # noqa: S310 - a local server
    with urllib.request.urlopen(request, timeout=START_SECONDS):  # noqa: S310 - as above
        pass


def _wait(process: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the server accepts connections."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        else:
            return
