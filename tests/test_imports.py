"""Libraries and programs that commands import: the start of a command costs what it imports."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

WATCHED = (
    "aiohttp", "asyncio", "cryptography", "google.protobuf", "grpc", "h11", "h2", "http.client", "influxdb_client", "jinja2", "nacl", "numpy", "obstore",
    "opentelemetry", "prometheus_client", "psutil", "psycopg", "pyarrow", "pynvml", "sqlalchemy", "structlog", "xml.etree",
    "railscope.capture", "railscope.catalog", "railscope.service", "railscope_agent.host.netlink", "railscope_agent.service",
    "railscope_collector.service",
)  # fmt: skip
CLIENT = {"http.client", "railscope.catalog"}
SERVICE = {"asyncio", "railscope.catalog", "railscope.service", "structlog"}
AGENT = SERVICE | {"h11", "psutil", "railscope.capture", "railscope_agent.service"}
LEDGER = SERVICE | {"nacl", "numpy", "sqlalchemy"}
IMPORTED = {
    ("--version",): set(),
    ("agent", "run", "--help"): AGENT,
    ("health", "--help"): set(),
    ("bill", "--help"): LEDGER,
    ("status", "--help"): CLIENT,
}  # fmt: skip
"""Watched modules that each command imports."""


@pytest.mark.parametrize(("arguments", "imported"), IMPORTED.items(), ids=map(" ".join, IMPORTED))
def test_a_command_imports_what_it_needs(arguments: tuple[str, ...], imported: set[str]):
    program = (
        "import sys\n"
        "from railscope.cli import main\n"
        f"try:\n    main({list(arguments)})\n"
        f"except SystemExit as end:\n    print(end.code, *({{*{WATCHED}}} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    status, *found = done.stdout.splitlines()[-1].split()
    assert (status, {*found}) == ("0", imported)


def test_every_watched_module_exists():
    assert [name for name in WATCHED if not importlib.util.find_spec(name)] == []
