"""A directory from which Prometheus, Alertmanager and Grafana can be started to monitor the demo.

It contains the cluster files of `deploy/` and `dashboards/`, with other addresses. Nothing in it sends
data away from this host.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from railscope_simulator import data, spec

CHECKOUT = Path(__file__).parents[3]
DASHBOARDS = CHECKOUT / "dashboards" / "generated"
HOST = "127.0.0.1"
_ALERTMANAGERS = ("alertmanager", "prometheus-alertmanager")
"""Name of the program upstream, and in Debian."""
_MESSAGES = re.compile(r"    webhook_configs:\n(?:      .*\n)+")
_PACKAGES = {"prometheus": "prometheus", "prometheus-alertmanager": "prometheus-alertmanager"}
"""Debian packages, by the program that they install."""


class WatchersError(spec.SimulatorError, RuntimeError):
    """The directory cannot be written; the message states the missing file or the obstacle."""


@dataclass(frozen=True, slots=True)
class WatcherProgram:
    """Program that monitors the demo; data/watchers.toml documents the fields."""

    shown_at: str
    command: tuple[str, ...]


PROGRAMS = data.read_table("watchers", dict[str, tuple[WatcherProgram, ...]])["programs"]


@dataclass(frozen=True, slots=True)
class WatcherPorts:
    """Listen ports: different from those of installed services, which may run on this host."""

    prometheus: int = 19090
    alertmanager: int = 19093
    grafana: int = 13000


@dataclass(frozen=True, slots=True)
class Watchers:
    """The directory, and the commands that start its programs."""

    directory: Path
    """An absolute path: Grafana's files contain it."""
    ports: WatcherPorts = WatcherPorts()

    @property
    def dashboards(self) -> Path:
        """Directory of the dashboards that link to the demo's collector."""
        return self.directory / "grafana" / "dashboards"

    def write(self) -> None:
        """Write all files except the addresses of the demo's programs. Blocking.

        Raises WatchersError without a checkout, or if the directory cannot be written.
        """
        try:
            for name, source, replacements in self._copies():
                self._write(name, _replace_addresses(source, replacements))
            alertmanager = (CHECKOUT / "deploy/alertmanager.yml").read_text(encoding="utf-8")
            self._write("alertmanager/alertmanager.yml", _MESSAGES.sub("", alertmanager))
            grafana = data.read_text("grafana.ini").format(
                directory=self.directory / "grafana",
                host=HOST,
                port=self.ports.grafana,
                dashboards=self.dashboards,
            )
            self._write("grafana/grafana.ini", grafana)
            self._targets("alertmanagers", {"": f"{HOST}:{self.ports.alertmanager}"})
        except OSError as error:
            message = (
                f"preparing Prometheus and Grafana failed: {self.directory}: {error}; fix: run the"
                " demo in a checkout, whose deploy/, alerts/ and dashboards/ are copied"
            )
            raise WatchersError(message) from error

    def _copies(self) -> Iterator[tuple[str, Path, Mapping[str, str]]]:
        """Files to copy: target name, source file, and text replacements."""
        provisioning = CHECKOUT / "dashboards" / "provisioning"
        prometheus = CHECKOUT / "deploy" / "prometheus" / "prometheus.yml"
        yield "prometheus/prometheus.yml", prometheus, {"../../alerts/rules": "rules"}
        for kind, replacements in {
            "datasources": {"http://localhost:9090": f"http://{HOST}:{self.ports.prometheus}"},
            "dashboards": {"/var/lib/grafana/dashboards/railscope": str(self.dashboards)},
        }.items():
            source = provisioning / kind / "railscope.yml"
            yield f"grafana/provisioning/{kind}/railscope.yml", source, replacements

    def _link_rules(self, rules: Path, collector: str) -> str:
        """Return the rules, with alerts that link to the local dashboards, and to runbooks and incidents of the console."""
        text = rules.read_text(encoding="utf-8")
        grafana = f"http://{HOST}:{self.ports.grafana}"
        text = text.replace("https://railscope.example/d/", f"{grafana}/d/")
        return text.replace("https://railscope.example/", f"http://{collector}/")

    def point_at(self, collector: str, metrics_endpoints: Mapping[str, str]) -> None:
        """Write the programs' addresses, as `host:port`; metrics endpoints by node. Blocking.

        Raises WatchersError if the directory cannot be written any more.
        """
        try:
            self._targets("collectors", {"": collector})
            for source in sorted((CHECKOUT / "alerts" / "rules").glob("*.yml")):
                self._write(f"prometheus/rules/{source.name}", self._link_rules(source, collector))
            for source in DASHBOARDS.glob("*.json"):
                text = _replace_addresses(source, {"http://localhost:9470": f"http://{collector}"})
                self._write(f"grafana/dashboards/{source.name}", text)
            self._targets("agents", metrics_endpoints)
        except OSError as error:
            message = f"writing the demo's addresses failed: {self.directory}: {error}"
            raise WatchersError(message) from error

    def commands(self) -> Mapping[str, Sequence[str]]:
        """Commands that start each program, by the URL or command that shows its state."""
        values = asdict(self.ports) | {
            "directory": self.directory,
            "host": HOST,
            "alertmanager_program": next(filter(shutil.which, _ALERTMANAGERS), _ALERTMANAGERS[-1]),
        }
        return {
            program.shown_at.format(**values): [part.format(**values) for part in program.command]
            for program in PROGRAMS
        }

    def start_commands(self) -> str:
        """Return the commands, ready to copy."""
        lines = [f"Prometheus, Alertmanager and Grafana find all they need in {self.directory}:"]
        lines += [
            f"  {shlex.join(command)}\n      {url}" for url, command in self.commands().items()
        ]
        programs = {command[0] for command in self.commands().values()}
        missing = [
            _PACKAGES[program] for program in programs & set(_PACKAGES) if not shutil.which(program)
        ]
        if missing:
            lines.append(f"  not installed here: apt-get install {' '.join(sorted(missing))}")
        return "\n".join(lines)

    def _targets(self, of: str, addresses: Mapping[str, str]) -> None:
        """Write target addresses by node; a collector and an Alertmanager have no node."""
        targets = [
            {"targets": [address], **({"labels": {"node": node}} if node else {})}
            for node, address in addresses.items()
        ]
        # Prometheus must never read a partial file, and JSON is YAML.
        path = f"prometheus/targets/{of}.yml"
        self._write(f"{path}.new", json.dumps(targets, indent=2) + "\n")
        (self.directory / f"{path}.new").replace(self.directory / path)

    def _write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _replace_addresses(path: Path, replacements: Mapping[str, str]) -> str:
    text = path.read_text(encoding="utf-8")
    for old, new in replacements.items():
        if old not in text:
            message = f"replacing an address failed: {path}: expected {old!r} in it"
            raise WatchersError(message)
        text = text.replace(old, new)
    return text
