"""Description of the Kubernetes objects of agent and collector, and of the values of their Helm chart."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

_PROGRAM = Path(__file__).parents[2] / "railscope/__init__.py"
VERSION = re.findall(r'^__version__ = "(.*)"$', _PROGRAM.read_text(), re.MULTILINE)[0]
"""Of this tree, which may be another one than the installed version."""
NAMESPACE = "railscope"
AGENT_PORT, COLLECTOR_PORT = 9469, 9470
AGENT_CREDENTIALS = "/run/credentials/railscope-agent.service"
COLLECTOR_CREDENTIALS = "/run/credentials/railscope-collector.service"
"""As systemd names them, so that settings apply to both."""
AGENT, COLLECTOR = "railscope-agent", "railscope-collector"


# Values ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChartValue:
    """One value of the chart, by its dotted key."""

    key: str
    default: Any
    description: str
    type: str | tuple[str, ...] = "string"
    """Of JSON Schema."""


VALUES = (
    ChartValue("image.repository", "railscope", "Registry and repository of the image, such as registry.example/railscope."),
    ChartValue("image.tag", VERSION, "Tag of the image."),
    ChartValue("image.pullPolicy", "IfNotPresent", "Always, IfNotPresent or Never."),
    ChartValue("image.pullSecrets", [], "Secrets of the registry: [{name: NAME}].", "array"),
    ChartValue("metricsSecret", "railscope-metrics", "Secret with the tokens of metrics endpoints: agent.token and collector.token."),
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
    ChartValue("agent.extraVolumeMounts", [], "Where the agent mounts them.", "array"),
    ChartValue("agent.tokensSecret", "railscope-nodes", "Secret with the token of each node, by the name of the node."),
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
    ChartValue("collector.extraVolumeMounts", [], "Where the collector mounts them.", "array"),
    ChartValue("collector.secret", "railscope-collector",
               f"Secret with tokens.toml and other secrets of the collector, which are in {COLLECTOR_CREDENTIALS}."),
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


# Description -------------------------------------------------------------------------------------


def labels(component: str) -> dict[str, str]:
    """Return the labels of the objects of a component."""
    name = {"app.kubernetes.io/name": component} if component else {}
    return {**name, "app.kubernetes.io/part-of": "railscope", "app.kubernetes.io/version": VERSION}  # fmt: skip


def metadata(name: str, component: str) -> dict[str, Any]:
    """Return the metadata of an object of a component."""
    return {"name": name, "labels": labels(component)}


def selector(component: str) -> dict[str, Any]:
    """Return the selector of the pods of a component."""
    return {"matchLabels": {"app.kubernetes.io/name": component}}


def account(component: str) -> dict[str, Any]:
    """Return the account of a component, which has no permissions."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(component, component),
        "automountServiceAccountToken": False,
    }


def config_map(name: str, component: str, data: Any) -> dict[str, Any]:
    """Return a ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(name, component),
        "data": data,
    }


def pod_metadata(component: str, section: str) -> dict[str, Any]:
    """Return the metadata of the pods of a component, which change with its settings."""
    settings = DEFAULTS[f"{section}.settings"]
    digest = Substitution(
        hashlib.sha256(settings.encode()).hexdigest(),
        f"{{{{ sha256sum .Values.{section}.settings }}}}",
    )
    return {
        "labels": labels(component),
        "annotations": {"railscope/settings-sha256": digest},
    }


def probe(path: str, port: str, **timing: int) -> dict[str, Any]:
    """Return an HTTP probe."""
    return {"httpGet": {"path": path, "port": port}, **timing}


def security(**added: Any) -> dict[str, Any]:
    """Return the security context of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], **added},
    }


def host_path(name: str, path: Any, kind: str) -> dict[str, Any]:
    """Return a volume of a directory of the node."""
    return {"name": name, "hostPath": {"path": path, "type": kind}}


def agent_objects() -> list[dict[str, Any]]:
    """Return the objects of the agent."""
    container = {
        "name": "agent",
        "image": IMAGE,
        "imagePullPolicy": value("image.pullPolicy"),
        "args": ["agent", "run"],
        "env": [
            {"name": "RAILSCOPE_AGENT_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "RAILSCOPE_AGENT_COLLECTOR__TOKEN_FILE", "value": f"{AGENT_CREDENTIALS}/collector.token"},
            {"name": "RAILSCOPE_AGENT_METRICS_TOKEN_FILE", "value": f"{AGENT_CREDENTIALS}/metrics.token"},
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
        ],
        "ports": [{"name": "metrics", "containerPort": AGENT_PORT}],
        "startupProbe": probe("/-/healthy", "metrics", periodSeconds=2, failureThreshold=30),
        "livenessProbe": probe("/-/healthy", "metrics", periodSeconds=10, failureThreshold=6, timeoutSeconds=5),
        "readinessProbe": probe("/-/ready", "metrics", periodSeconds=10, timeoutSeconds=5),
        "resources": value("agent.resources"),
        "securityContext": security(add=value("agent.capabilities")),
        "volumeMounts": [
            {"name": "settings", "mountPath": "/etc/railscope", "readOnly": True},
            {"name": "tokens", "mountPath": f"{AGENT_CREDENTIALS}/collector.token",
             "subPathExpr": "$(RAILSCOPE_AGENT_NODE)", "readOnly": True},
            {"name": "metrics", "mountPath": f"{AGENT_CREDENTIALS}/metrics.token", "subPath": "agent.token", "readOnly": True},
            {"name": "state", "mountPath": "/var/lib/railscope-agent"},
            {"name": "pod-resources", "mountPath": "/var/lib/kubelet/pod-resources", "readOnly": True},
            {"name": "pod-logs", "mountPath": "/var/log/pods", "readOnly": True},
            {"name": "sys", "mountPath": "/sys", "readOnly": True},
            each("agent.extraVolumeMounts"),
        ],
    }  # fmt: skip
    pod = {
        "serviceAccountName": AGENT,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": True,
        "hostPID": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "runtimeClassName": value("agent.runtimeClassName"),
        "priorityClassName": value("agent.priorityClassName"),
        "terminationGracePeriodSeconds": 30,
        "imagePullSecrets": value("image.pullSecrets"),
        "nodeSelector": value("agent.nodeSelector"),
        "affinity": value("agent.affinity"),
        "tolerations": value("agent.tolerations"),
        "securityContext": {"runAsUser": 0, "runAsGroup": 0, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
        "volumes": [
            {"name": "settings", "configMap": {"name": AGENT}},
            {"name": "tokens", "secret": {"secretName": value("agent.tokensSecret"), "defaultMode": 0o400}},
            {"name": "metrics", "secret": {"secretName": value("metricsSecret"), "defaultMode": 0o400}},
            host_path("state", value("agent.stateDirectory"), "DirectoryOrCreate"),
            host_path("pod-resources", value("agent.podResourcesDirectory"), "Directory"),
            host_path("pod-logs", "/var/log/pods", "Directory"),
            host_path("sys", "/sys", "Directory"),
            each("agent.extraVolumes"),
        ],
    }  # fmt: skip
    daemon_set = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata(AGENT, AGENT),
        "spec": {
            "selector": selector(AGENT),
            "updateStrategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": value("agent.maxUnavailable")},
            },
            "template": {"metadata": pod_metadata(AGENT, "agent"), "spec": pod},
        },
    }
    data = {"agent.toml": value("agent.settings")}
    return [account(AGENT), config_map(AGENT, AGENT, data), daemon_set]


def collector_objects() -> list[dict[str, Any]]:
    """Return the objects of the collector."""
    container = {
        "name": "collector",
        "image": IMAGE,
        "imagePullPolicy": value("image.pullPolicy"),
        "args": ["collector", "run"],
        "env": [{"name": "RAILSCOPE_COLLECTOR_TOKENS_FILE", "value": f"{COLLECTOR_CREDENTIALS}/tokens.toml"}],
        "ports": [{"name": "http", "containerPort": COLLECTOR_PORT}],
        # Replaying the frame log may take minutes.
        "startupProbe": probe("/-/healthy", "http", periodSeconds=5, failureThreshold=120),
        "livenessProbe": probe("/-/healthy", "http", periodSeconds=10, failureThreshold=6, timeoutSeconds=5),
        "readinessProbe": probe("/-/ready", "http", periodSeconds=5, timeoutSeconds=5),
        "resources": value("collector.resources"),
        "securityContext": security(),
        "volumeMounts": [
            {"name": "settings", "mountPath": "/etc/railscope", "readOnly": True},
            {"name": "secrets", "mountPath": COLLECTOR_CREDENTIALS, "readOnly": True},
            {"name": "state", "mountPath": "/var/lib/railscope-collector"},
            {"name": "temporary", "mountPath": "/tmp"},  # noqa: S108 - of the container
            each("collector.extraVolumeMounts"),
        ],
    }  # fmt: skip
    pod = {
        "serviceAccountName": COLLECTOR,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "priorityClassName": value("collector.priorityClassName"),
        "terminationGracePeriodSeconds": 60,
        "imagePullSecrets": value("image.pullSecrets"),
        "nodeSelector": value("collector.nodeSelector"),
        "affinity": value("collector.affinity"),
        "tolerations": value("collector.tolerations"),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "fsGroup": 65532,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {
                "name": "settings",
                "projected": {
                    "sources": [
                        {"configMap": {"name": COLLECTOR}},
                        {"configMap": {"name": f"{COLLECTOR}-files"}},
                    ]
                },
            },
            {
                "name": "secrets",
                "secret": {"secretName": value("collector.secret"), "defaultMode": 0o440},
            },
            {"name": "temporary", "emptyDir": {}},
            each("collector.extraVolumes"),
        ],
    }
    claim = {
        "metadata": {"name": "state"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": value("collector.storageClassName"),
            "resources": {"requests": {"storage": value("collector.storage")}},
        },
    }
    stateful_set = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(COLLECTOR, COLLECTOR),
        "spec": {
            "serviceName": f"{COLLECTOR}-pods",
            "replicas": 1,
            "selector": selector(COLLECTOR),
            "template": {"metadata": pod_metadata(COLLECTOR, "collector"), "spec": pod},
            "volumeClaimTemplates": [claim],
        },
    }
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(COLLECTOR, COLLECTOR),
        "spec": {
            "maxUnavailable": value("collector.maxUnavailable"),
            "selector": selector(COLLECTOR),
        },
    }
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(COLLECTOR, COLLECTOR),
        "spec": {
            "podSelector": selector(COLLECTOR),
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": value("collector.networkPolicyFrom"),
                    "ports": [{"protocol": "TCP", "port": "http"}],
                }
            ],
        },
    }
    return [
        account(COLLECTOR),
        config_map(COLLECTOR, COLLECTOR, {"collector.toml": value("collector.settings")}),
        config_map(f"{COLLECTOR}-files", COLLECTOR, value("collector.files")),
        service(COLLECTOR, COLLECTOR, {}),
        service(f"{COLLECTOR}-pods", "", {"clusterIP": "None"}),
        stateful_set,
        budget,
        policy,
    ]


def service(name: str, component: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Service of the collector."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(name, component),
        "spec": {
            **spec,
            "selector": selector(COLLECTOR)["matchLabels"],
            "ports": [{"name": "http", "port": COLLECTOR_PORT, "targetPort": "http"}],
        },
    }


def monitoring_metadata(name: str) -> dict[str, Any]:
    """Return the metadata of an object that the Prometheus operator selects."""
    return {"name": name, "labels": value("monitoring.labels")}


def monitor_objects() -> list[dict[str, Any]]:
    """Return the objects that let the Prometheus operator scrape agents and collector."""

    def endpoint(port: str, key: str) -> dict[str, Any]:
        credentials = {"name": value("metricsSecret"), "key": key}
        return {
            "port": port,
            "interval": value("monitoring.interval"),
            "authorization": {"credentials": credentials},
        }

    node = {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}
    # The series of a GPU keep their labels when its agent gets another pod.
    left_out = {"action": "labeldrop", "regex": "pod|container|namespace|endpoint"}
    of_agents = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": monitoring_metadata(AGENT),
        "spec": {
            "selector": selector(AGENT),
            "jobLabel": "app.kubernetes.io/name",
            "podMetricsEndpoints": [
                {**endpoint("metrics", "agent.token"), "relabelings": [node, left_out]}
            ],
        },
    }
    of_collector = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": monitoring_metadata(COLLECTOR),
        "spec": {
            "selector": selector(COLLECTOR),
            "jobLabel": "app.kubernetes.io/name",
            "endpoints": [
                {
                    **endpoint("http", "collector.token"),
                    "honorLabels": True,
                    "relabelings": [left_out],
                }
            ],
        },
    }
    return [of_agents, of_collector]


def rule_objects(source: Path) -> list[dict[str, Any]]:
    """Return the alerts and recorded series of a source tree."""
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PrometheusRule",
            "metadata": monitoring_metadata(f"railscope-{name}"),
            "spec": chart_file(f"rules/{name}.json", rules),
        }
        for name, rules in rule_files(source)
    ]


def rule_files(source: Path) -> Iterator[tuple[str, Any]]:
    """Yield name and content of each file of rules of a source tree."""
    for path in sorted((source / "alerts/rules").glob("*.yml")):
        yield path.stem, yaml.load(path.read_text(), yaml.CSafeLoader)


def dashboard_files(source: Path) -> list[Path]:
    """Return the dashboards of a source tree."""
    return sorted((source / "dashboards/generated").glob("*.json"))


def dashboard_objects(source: Path) -> list[dict[str, Any]]:
    """Return the dashboards of a source tree; in the manifests, kustomize makes them of the files themselves."""
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": f"railscope-dashboard-{path.stem}",
                "labels": value("monitoring.dashboardLabels"),
            },
            "data": {
                path.name: Substitution(
                    path.read_text(), f'{{{{ toJson (.Files.Get "dashboards/{path.name}") }}}}'
                )
            },
        }
        for path in dashboard_files(source)
    ]
