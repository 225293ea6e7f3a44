"""Values of the Helm chart of agent and collector, and their substitution in its templates."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROGRAM = Path(__file__).parents[2] / "railscope/__init__.py"
VERSION = re.findall(r'^__version__ = "(.*)"$', _PROGRAM.read_text(), re.MULTILINE)[0]
"""Version of this tree, which may be another one than the installed version."""
COLLECTOR_CREDENTIALS = "/run/credentials/railscope-collector.service"
"""Directory of the collector's secrets: that of systemd, so that the same settings apply to services and pods."""


@dataclass(frozen=True)
class ChartValue:
    """One value of the chart, by its dotted key."""

    key: str
    default: Any
    description: str
    type: str | tuple[str, ...] = "string"
    """Type or types by JSON Schema."""


VALUES = (
    ChartValue("image.repository", "railscope", "Registry and repository of the image, such as registry.example/railscope."),
    ChartValue("image.tag", VERSION, "Tag of the image."),
    ChartValue("image.pullPolicy", "IfNotPresent", "Always, IfNotPresent or Never."),
    ChartValue("image.pullSecrets", [], "Secrets of the registry: [{name: NAME}].", "array"),
    ChartValue("agent.settings", '[collector]\nurl = "http://railscope-collector:9470"\n', "Settings file of the agents (agent.toml)."),
    ChartValue("agent.resources", {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
               "Resources of an agent, which keeps itself within 3 % of a core and 96 MiB.", "object"),
    ChartValue("agent.nodeSelector", {"nvidia.com/gpu.present": "true"}, "Labels of the nodes that run an agent.", "object"),
    ChartValue("agent.affinity", {}, "Further rules for these nodes.", "object"),
    ChartValue("agent.tolerations", [{"operator": "Exists"}], "Taints that an agent tolerates: all, to report faulty nodes too.", "array"),
    ChartValue("agent.priorityClassName", "system-node-critical", "Priority class of the agents.", ("string", "null")),
    ChartValue("agent.runtimeClassName", "nvidia",
               "Runtime class that gives containers the driver. null: the default runtime does.", ("string", "null")),
    ChartValue("agent.maxUnavailable", "10%", "Agents that an update replaces at a time.", ("string", "integer")),
    ChartValue("agent.capabilities", [], "Capabilities of the agent, such as NET_RAW for LLDP (docs/kubernetes.md).", "array"),
    ChartValue("agent.stateDirectory", "/var/lib/railscope-agent", "Directory of the node for the spool."),
    ChartValue("agent.podResourcesDirectory", "/var/lib/kubelet/pod-resources", "Directory of the node with the kubelet's socket."),
    ChartValue("agent.extraVolumes", [], "Further volumes of an agent.", "array"),
    ChartValue("agent.extraVolumeMounts", [], "Mounts of these volumes in an agent.", "array"),
    ChartValue("agent.tokenFile", "/etc/railscope/collector.token", "File of the node with its token. The agent starts when it exists."),
    ChartValue("agent.metricsSecret", "railscope-agent-metrics", "Secret with the token of the agents' metrics endpoints, under the key token."),
    ChartValue("collector.settings", "# See docs/configuration.md.\n", "Settings file of the collector (collector.toml)."),
    ChartValue("collector.files", {}, "Administrators' files by name, which are in /etc/railscope: tenants.csv and others.", "object"),
    ChartValue("collector.resources", {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "4Gi"}},
               "Resources of the collector (docs/costs.md).", "object"),
    ChartValue("collector.storage", "50Gi", "Size of the volume: frame log (20 GiB), waiting evidence (4 GiB), ledger."),
    ChartValue("collector.storageClassName", None, "Storage class of the volume. null: that of the cluster.", ("string", "null")),
    ChartValue("collector.nodeSelector", {}, "Labels of the nodes that may run the collector.", "object"),
    ChartValue("collector.affinity", {}, "Further rules for these nodes.", "object"),
    ChartValue("collector.tolerations", [], "Taints that the collector tolerates.", "array"),
    ChartValue("collector.priorityClassName", None, "Priority class of the collector.", ("string", "null")),
    ChartValue("collector.maxUnavailable", 1,
               "Collectors that a drain may stop at a time; with 0 the drain waits until the pod is deleted.", ("string", "integer")),
    ChartValue("collector.networkPolicyFrom", [],
               "Peers that may connect to the collector, as in a NetworkPolicy. Empty: all. Agents have the addresses of their nodes.", "array"),
    ChartValue("collector.extraVolumes", [], "Further volumes of the collector.", "array"),
    ChartValue("collector.extraVolumeMounts", [], "Mounts of these volumes in the collector.", "array"),
    ChartValue("collector.secret", "railscope-collector",
               f"Secret with tokens.toml and other secrets of the collector, which are in {COLLECTOR_CREDENTIALS}."),
    ChartValue("collector.metricsSecret", "railscope-collector-metrics",
               "Secret with the token of Prometheus at the collector, under the key token. No pod of the chart mounts it."),
    ChartValue("monitoring.enabled", default=False, description="PodMonitor, ServiceMonitor, PrometheusRule and dashboards.", type="boolean"),
    ChartValue("monitoring.labels", {}, "Labels by which the Prometheus operator selects monitors and rules.", "object"),
    ChartValue("monitoring.interval", "15s", "Scrape interval."),
    ChartValue("monitoring.dashboardLabels", {"grafana_dashboard": "1"}, "Labels by which Grafana's sidecar selects dashboards.", "object"),
)  # fmt: skip
DEFAULTS = {value.key: value.default for value in VALUES}


@dataclass(frozen=True)
class Substitution:
    """A value in a manifest: its default in the manifests, its substitution in the chart."""

    default: Any
    template: str

    def in_chart(self, line: str, marker: str) -> str:
        """Return the lines of the chart for a line with the marker of this substitution."""
        return line.replace(marker, self.template)


class Splice(Substitution):
    """Entry of a list that stands for all entries of a value."""

    def in_chart(self, line: str, marker: str) -> str:
        """Return lines that repeat this one for each entry."""
        indent = line[: line.index("-")]
        body = line.replace(marker, "{{ toJson . }}")
        return f"{indent}{{{{- range {self.template} }}}}\n{body}\n{indent}{{{{- end }}}}"


def value(key: str) -> Substitution:
    """Return the substitution of a value."""
    return Substitution(DEFAULTS[key], f"{{{{ toJson .Values.{key} }}}}")


def each(key: str) -> Splice:
    """Return the substitution of all entries of a list."""
    return Splice(DEFAULTS[key], f".Values.{key}")


def chart_file(name: str, content: Any) -> Substitution:
    """Return the substitution of a file of the chart, which contains JSON."""
    return Substitution(content, f'{{{{ .Files.Get "{name}" }}}}')


IMAGE = Substitution(
    f"{DEFAULTS['image.repository']}:{DEFAULTS['image.tag']}",
    '"{{ .Values.image.repository }}:{{ .Values.image.tag }}"',
)
