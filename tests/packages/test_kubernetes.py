"""Kubernetes manifests and Helm chart: rendered by kubectl and Helm, valid, equal to each other and to settings and rules."""

from __future__ import annotations

import base64
import gzip
import importlib
import json
import re
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import manifests
import pytest
import yaml
from chart_values import VALUES, ChartValue
from support.packages import ROOT

import railscope_agent.config
import railscope_collector.config
from railscope import __version__, settings

HELM, KUBECTL = ROOT / ".helm/helm", ROOT / ".helm/kubectl"
NEWEST = "1.37"
MAX_APPLIED_BYTES = 262_144
"""Size of the annotation in which `kubectl apply` stores an object."""
MAX_RELEASE_BYTES = 1 << 20
"""Size of the Secret in which Helm stores a release."""
PROGRAMS = {
    "agent": (railscope_agent.config.AgentSettings, railscope_agent.config.PREFIX),
    "collector": (railscope_collector.config.CollectorSettings, railscope_collector.config.PREFIX),
}
EACH_PROGRAM = pytest.mark.parametrize("program", PROGRAMS)
Objects = dict[tuple[str, str], dict[str, Any]]


def run(program: Path, *arguments: str | Path) -> str:
    if not program.exists():
        pytest.skip(f"{program.name} is missing: run `make servers`")
    command = [str(program), *map(str, arguments)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def parse(text: str) -> Objects:
    found = (item for item in yaml.load_all(text, yaml.CSafeLoader) if item)
    return {(item["kind"], item["metadata"]["name"]): item for item in found}


def without_empty(node: Any) -> Any:
    """An object without what an empty value renders to, and without namespaces, which `helm` and `kubectl` add."""
    if isinstance(node, dict):
        found = {key: without_empty(entry) for key, entry in node.items() if key != "namespace"}
        return {key: entry for key, entry in found.items() if entry not in (None, [], {})}
    return [without_empty(entry) for entry in node] if isinstance(node, list) else node


def kustomized(directory: str) -> Objects:
    return parse(run(KUBECTL, "kustomize", ROOT / directory))


@pytest.fixture(name="chart", scope="module")
def _chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("chart")
    manifests.write_chart(ROOT, __version__, directory, 0)
    return directory / f"railscope-{__version__}.tgz"


@pytest.fixture(name="rendered", scope="module")
def _rendered(chart: Path) -> Objects:
    return parse(run(HELM, "template", "railscope", chart, "--set", "monitoring.enabled=true"))


@pytest.fixture(name="applied", scope="module")
def _applied() -> Objects:
    return {**kustomized("deploy/kubernetes"), **kustomized("deploy/kubernetes/monitoring")}


def pod(objects: Objects, program: str) -> dict[str, Any]:
    kind = {"agent": "DaemonSet", "collector": "StatefulSet"}[program]
    template: dict[str, Any] = objects[kind, f"railscope-{program}"]["spec"]["template"]
    return template


# Manifests and chart -----------------------------------------------------------------------------


def test_the_committed_manifests_are_those_of_the_description():
    for name, text in manifests.manifests(ROOT).items():
        assert (ROOT / name).read_text() == text, f"{name}: run deploy/packages/manifests.py"


def test_the_chart_renders_to_the_manifests(chart: Path, rendered: Objects, applied: Objects):
    assert without_empty(rendered) == without_empty(
        {key: item for key, item in applied.items() if key[0] != "Namespace"}
    )
    by_default = parse(run(HELM, "template", "railscope", chart)).keys()
    assert by_default == kustomized("deploy/kubernetes").keys() - {("Namespace", "railscope")}
    run(HELM, "lint", "--strict", chart)


def other_value(number: int, entry: ChartValue) -> Any:
    """A value of the same type that no manifest contains otherwise."""
    name = f"marker-{number}"
    if isinstance(entry.default, bool):
        return not entry.default
    return {"array": [{"name": name}], "object": {name: name}}.get(str(entry.type), name)


def test_every_value_of_the_chart_is_used(chart: Path, tmp_path: Path):
    given: dict[str, Any] = {}
    for number, entry in enumerate(VALUES):
        *above, name = entry.key.split(".")
        section = given.setdefault(above[0], {}) if above else given
        section[name] = other_value(number, entry)
    (tmp_path / "values.json").write_text(json.dumps(given))
    text = run(HELM, "template", "railscope", chart, "--values", tmp_path / "values.json")
    unused = [e.key for n, e in enumerate(VALUES) if not re.search(rf"marker-{n}\b", text)]
    assert unused == ["monitoring.enabled"]
    assert "PodMonitor" in text


@pytest.mark.parametrize("given", ["agent.capability=NET_RAW", "agent.resources=1", "other=1"])
def test_helm_rejects_an_unknown_value_and_a_wrong_type(chart: Path, given: str):
    if not HELM.exists():
        pytest.skip("helm is missing: run `make servers`")
    command = [str(HELM), "template", "railscope", str(chart), "--set", given]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode != 0
    assert "schema" in outcome.stderr


def test_every_value_is_documented_with_its_default():
    page = (ROOT / "docs/kubernetes.md").read_text()
    for entry in VALUES:
        default = "the version" if entry.key == "image.tag" else f"`{json.dumps(entry.default)}`"
        assert f"| `{entry.key}` | {default} | {entry.description} |" in page


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.2.0", "0.2.0"), ("1.0", "1.0.0"), ("1.2.0rc1", "1.2.0-rc.1"), ("1.2.0.dev3", "1.2.0-dev.3")],
)  # fmt: skip
def test_the_version_of_the_chart_is_one_of_helm(version: str, expected: str):
    assert manifests.chart_version(version) == expected


# Validity ----------------------------------------------------------------------------------------


@pytest.fixture(name="kubernetes_validate")
def _kubernetes_validate() -> Any:
    """Return the validator, whose import takes a second of each worker."""
    return importlib.import_module("kubernetes_validate")


def is_of_kubernetes(item: Mapping[str, Any]) -> bool:
    return not item["apiVersion"].startswith("monitoring.coreos.com/")


def test_the_manifests_and_the_chart_are_valid(
    rendered: Objects, applied: Objects, kubernetes_validate: Any
):
    for objects in (rendered, applied):
        checked = [item for item in objects.values() if is_of_kubernetes(item)]
        assert len(checked) > 20
        for item in checked:
            kubernetes_validate.validate(item, NEWEST, strict=True)


def test_a_wrong_type_is_invalid(applied: Objects, kubernetes_validate: Any):
    item = json.loads(json.dumps(applied["DaemonSet", "railscope-agent"]))
    item["spec"]["template"]["spec"]["hostNetwork"] = "yes"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(item, NEWEST, strict=True)


def test_rules_and_dashboards_are_those_of_the_repository(applied: Objects):
    for path in (ROOT / "alerts/rules").glob("*.yml"):
        rules = applied["PrometheusRule", f"railscope-{path.stem}"]["spec"]
        assert rules == yaml.load(path.read_text(), yaml.CSafeLoader)
    dashboards = sorted((ROOT / "dashboards/generated").glob("*.json"))
    assert len(dashboards) > 10
    for path in dashboards:
        data = applied["ConfigMap", f"railscope-dashboard-{path.stem}"]["data"]
        assert data == {path.name: path.read_text()}


def test_the_documented_network_policy_is_valid(
    chart: Path, tmp_path: Path, kubernetes_validate: Any
):
    page = (ROOT / "docs/kubernetes.md").read_text()
    (block,) = [text for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "networkPolicyFrom" in text]  # fmt: skip
    (tmp_path / "values.yaml").write_text(block)
    rendered = parse(
        run(HELM, "template", "railscope", chart, "--values", tmp_path / "values.yaml")
    )
    policy = rendered["NetworkPolicy", "railscope-collector"]
    kubernetes_validate.validate(policy, NEWEST, strict=True)
    (rule,) = policy["spec"]["ingress"]
    assert [set(peer) for peer in rule["from"]] == [{"ipBlock"}, {"namespaceSelector"}]
    assert len(rule["ports"]) == 1


def test_the_documented_container_has_both_tokens():
    """Without them the collector rejects its frames, and its metrics are open."""
    text = (ROOT / "docs/kubernetes.md").read_text().partition("docker run ")[2].partition("```")[0]
    kind, prefix = PROGRAMS["agent"]
    environment = dict(re.findall(r"--env (\w+)=(\S+)", text))
    loaded: Any = settings.load(kind, file=None, environment=environment, prefix=prefix)
    targets = set(
        re.findall(r"--mount type=bind,readonly,source=/etc/railscope/\S+,target=(\S+)", text)
    )
    assert {loaded.collector.token_file, loaded.metrics_token_file} == targets
    assert len(targets) == 2


def test_objects_and_release_are_within_the_limits_of_kubernetes(chart: Path, rendered: Objects):
    sizes = {key: len(json.dumps(item).encode()) for key, item in rendered.items()}
    assert max(sizes.values()) < MAX_APPLIED_BYTES, sizes
    # As Helm stores it: files and templates in base64, with the manifests, compressed, in base64.
    with tarfile.open(chart) as archive:
        contents = [archive.extractfile(member) for member in archive]
        files = [base64.b64encode(file.read()).decode() for file in contents if file]
    release = json.dumps([files, yaml.dump_all(rendered.values(), Dumper=yaml.CSafeDumper)])
    assert len(base64.b64encode(gzip.compress(release.encode()))) < MAX_RELEASE_BYTES


# Agreement with the programs ---------------------------------------------------------------------


@EACH_PROGRAM
def test_environment_and_settings_are_those_of_the_program(program: str, applied: Objects, tmp_path: Path):  # fmt: skip
    (container,) = pod(applied, program)["spec"]["containers"]
    kind, prefix = PROGRAMS[program]
    environment = {entry["name"]: entry.get("value", "gpu-001") for entry in container["env"]}
    data = applied["ConfigMap", f"railscope-{program}"]["data"]
    file = tmp_path / f"{program}.toml"
    file.write_text(data[file.name])
    loaded: Any = settings.load(kind, file=file, environment=environment, prefix=prefix)
    foreign = {name for name in environment if not name.startswith(prefix)}
    assert foreign == ({"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"} if program == "agent" else set())  # fmt: skip
    (port,) = container["ports"]
    assert loaded.listen == f"0.0.0.0:{port['containerPort']}"
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert loaded.state_directory in mounts
    files = [text for name, text in environment.items() if name.endswith("_FILE")]
    assert files
    assert all(any(f"{file}/".startswith(f"{mount}/") for mount in mounts) for file in files)


def test_the_agents_send_to_the_service_of_the_collector(applied: Objects):
    text = applied["ConfigMap", "railscope-agent"]["data"]["agent.toml"]
    service = applied["Service", "railscope-collector"]
    (port,) = service["spec"]["ports"]
    assert f'url = "http://{service["metadata"]["name"]}:{port["port"]}"' in text
    labels = pod(applied, "collector")["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


@EACH_PROGRAM
def test_a_pod_has_no_more_rights_than_its_program_needs(program: str, applied: Objects):
    spec = pod(applied, program)["spec"]
    (container,) = spec["containers"]
    context = container["securityContext"]
    assert context == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsUser"] == (0 if program == "agent" else 65532)
    assert not {kind for kind, _ in applied if "Role" in kind}


@EACH_PROGRAM
def test_variables_of_services_do_not_reach_a_program(program: str, applied: Objects):
    """Kubernetes adds variables of each Service, such as RAILSCOPE_COLLECTOR_PORT, which are unknown settings."""
    kind, prefix = PROGRAMS[program]
    with pytest.raises(settings.SettingsError):
        settings.load(kind, file=None, environment={f"{prefix}PORT": "tcp://x"}, prefix=prefix)
    assert pod(applied, program)["spec"]["enableServiceLinks"] is False


def test_scraped_jobs_are_those_of_the_alerts(applied: Objects):
    named = set()
    for path in (ROOT / "alerts/rules").glob("*.yml"):
        named |= set(re.findall(r'job="(railscope-\w+)"', path.read_text()))
    monitors = {"PodMonitor": "agent", "ServiceMonitor": "collector"}
    for kind, program in monitors.items():
        monitor = applied[kind, f"railscope-{program}"]["spec"]
        labels = pod(applied, program)["metadata"]["labels"]
        assert monitor["selector"]["matchLabels"].items() <= labels.items()
        assert labels[monitor["jobLabel"]] in named
    matched = [
        item
        for (kind, _), item in applied.items()
        if kind == "Service" and "app.kubernetes.io/name" in item["metadata"]["labels"]
    ]
    assert len(matched) == 1, "one Service is scraped"


def test_no_node_gets_the_token_of_another_node_or_of_an_operator(
    rendered: Objects, applied: Objects
):
    """Root on a node reads every Secret that a pod of the node mounts, whole, whatever its containers see."""
    for objects in (rendered, applied):
        spec = pod(objects, "agent")["spec"]
        secrets = [v["secret"]["secretName"] for v in spec["volumes"] if "secret" in v]
        assert secrets == ["railscope-agent-metrics"]
        assert "secret" not in json.dumps(spec["containers"]).lower()
        (token,) = [v["hostPath"] for v in spec["volumes"] if v["name"] == "token"]
        assert token == {"path": "/etc/railscope/collector.token", "type": "File"}
        scraped = objects["ServiceMonitor", "railscope-collector"]["spec"]["endpoints"][0]
        secret = scraped["authorization"]["credentials"]["name"]
        assert secret not in json.dumps([pod(objects, program) for program in PROGRAMS])
