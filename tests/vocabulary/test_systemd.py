"""Notifications of systemd."""

from __future__ import annotations

import socket
from pathlib import Path

from structlog.testing import capture_logs

from railscope.systemd import notify


def test_a_systemd_that_does_not_read_stops_no_service(tmp_path: Path):
    limit = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text(encoding="ascii"))
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, capture_logs() as logged:
        systemd.bind(address)
        for _ in range(limit + 2):
            notify("WATCHDOG=1", {"NOTIFY_SOCKET": address})
        assert systemd.recv(100) == b"WATCHDOG=1"
        notify("STOPPING=1", {"NOTIFY_SOCKET": address})
        while (state := systemd.recv(100)) == b"WATCHDOG=1":
            pass
    assert state == b"STOPPING=1", "sent when there is space again"
    assert {entry["event"] for entry in logged} == {"notification_lost"}


def test_an_absent_systemd_stops_no_service(tmp_path: Path):
    with capture_logs() as logged:
        notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "absent")})
    assert [(entry["event"], entry["state"]) for entry in logged] == [
        ("notification_lost", "READY=1")
    ]
