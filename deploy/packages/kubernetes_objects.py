"""Description of the Kubernetes objects of agent and collector."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from chart_values import (
    COLLECTOR_CREDENTIALS,
    DEFAULTS,
    IMAGE,
    VERSION,
    Substitution,
    chart_file,
    each,
    value,
)

NAMESPACE = "railscope"
AGENT_PORT, COLLECTOR_PORT = 9469, 9470
AGENT_CREDENTIALS = "/run/credentials/railscope-agent.service"
METRICS_CREDENTIALS = "/run/credentials/railscope-agent-metrics"
AGENT, COLLECTOR = "railscope-agent", "railscope-collector"


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
    """Return a volume of a file or directory of the node."""
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
            {"name": "RAILSCOPE_AGENT_METRICS_TOKEN_FILE", "value": f"{METRICS_CREDENTIALS}/token"},
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
            {"name": "token", "mountPath": f"{AGENT_CREDENTIALS}/collector.token", "readOnly": True},
            {"name": "metrics", "mountPath": METRICS_CREDENTIALS, "readOnly": True},
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
            # In a Secret of all nodes, root on each node could read the tokens of the others, whatever its containers mount.
            host_path("token", value("agent.tokenFile"), "File"),
            {"name": "metrics", "secret": {"secretName": value("agent.metricsSecret"), "defaultMode": 0o400}},
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

    def endpoint(port: str, secret: str) -> dict[str, Any]:
        credentials = {"name": value(secret), "key": "token"}
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
                {**endpoint("metrics", "agent.metricsSecret"), "relabelings": [node, left_out]}
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
                    **endpoint("http", "collector.metricsSecret"),
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
