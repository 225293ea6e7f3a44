"""Files from which Prometheus, Alertmanager and Grafana can be started to monitor the demo, and the commands for it.

They are the files that this installation ships, with other addresses. Nothing in them sends data away from this host.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from railscope import shipped_files
from railscope.durable_files import write_atomically
from railscope_simulator import data

HOST = "127.0.0.1"
PROMETHEUS, ALERTMANAGER, GRAFANA = f"{HOST}:19090", f"{HOST}:19093", f"{HOST}:13000"
"""Addresses that differ from those of installed services, which may run on this host."""
_COPIES = {
    "alerts/rules/": "prometheus/rules/",
    "dashboards/generated/": "grafana/dashboards/",
    "dashboards/provisioning/": "grafana/provisioning/",
    "deploy/alertmanager.yml": "alertmanager/alertmanager.yml",
    "deploy/prometheus/prometheus.yml": "prometheus/prometheus.yml",
}
"""Path in the directory of the demo, by the path among the shipped files."""
_MESSAGES = re.compile(r"    webhook_configs:\n(?:      .*\n)+")
_ALERTMANAGERS = ("alertmanager", "prometheus-alertmanager")
"""Name of the program upstream, and in Debian."""


def write_files(directory: Path, collector: str, agents: Mapping[str, str]) -> None:
    """Write the files for a collector and agents by node, at `host:port`. Blocking; raises OSError."""
    dashboards = directory / "grafana" / "dashboards"
    # In this order: the first address is a part of the second one.
    addresses = {
        "https://railscope.example/d/": f"http://{GRAFANA}/d/",
        "https://railscope.example/": f"http://{collector}/",
        "http://localhost:9470": f"http://{collector}",
        "http://localhost:9090": f"http://{PROMETHEUS}",
        "/var/lib/grafana/dashboards/railscope": str(dashboards),
        "../../alerts/rules": "rules",
    }
    for name, source in shipped_files.shipped_files().items():
        for prefix in (prefix for prefix in _COPIES if name.startswith(prefix)):
            text = _MESSAGES.sub("", source.read_text(encoding="utf-8"))
            for old, new in addresses.items():
                text = text.replace(old, new)
            _write(directory / name.replace(prefix, _COPIES[prefix]), text)
    host, port = GRAFANA.split(":")
    grafana = data.read_text("grafana.ini").format(
        directory=directory / "grafana", host=host, port=port, dashboards=dashboards
    )
    _write(directory / "grafana/grafana.ini", grafana)
    targets = {"alertmanagers": {"": ALERTMANAGER}, "collectors": {"": collector}, "agents": agents}
    for kind, found in targets.items():
        rows = [
            {"targets": [address], **({"labels": {"node": node}} if node else {})}
            for node, address in found.items()
        ]
        # Prometheus must never read a partial file, and JSON is YAML.
        text = json.dumps(rows, indent=2) + "\n"
        (directory / "prometheus/targets").mkdir(exist_ok=True)
        write_atomically(directory / f"prometheus/targets/{kind}.yml", text.encode())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def start_commands(directory: Path) -> str:
    """Return the commands that start the programs, ready to copy, and the addresses to open."""
    place = shlex.quote(str(directory))
    alertmanager = next(filter(shutil.which, _ALERTMANAGERS), _ALERTMANAGERS[-1])
    # Debian's Prometheus has only the old web interface, its Alertmanager has none, and it has no Grafana.
    text = f"""Prometheus, Alertmanager and Grafana find all they need in {directory}:
  prometheus --config.file={place}/prometheus/prometheus.yml --storage.tsdb.path={place}/prometheus/data --web.listen-address={PROMETHEUS}
      http://{PROMETHEUS}/classic/alerts (other builds than Debian's: http://{PROMETHEUS}/alerts)
  {alertmanager} --config.file={place}/alertmanager/alertmanager.yml --storage.path={place}/alertmanager/data --web.listen-address={ALERTMANAGER} --cluster.listen-address=
      amtool --alertmanager.url=http://{ALERTMANAGER} alert
  grafana server --homepath=/usr/share/grafana --config={place}/grafana/grafana.ini
      http://{GRAFANA} (Debian has no package: install Grafana OSS as grafana.com/docs describes)"""
    missing = [name for name in ("prometheus", alertmanager) if not shutil.which(name)]
    if missing:
        text += f"\n  not installed here: apt-get install {' '.join(missing)}"
    return text
