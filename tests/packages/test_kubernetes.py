"""Kubernetes manifests and Helm chart: rendered by kubectl and Helm, valid, equal to each other and to settings and rules."""

from __future__ import annotations

import base64
import gzip
import importlib
import json
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import build
import pytest
import yaml
from support.packages import ROOT
from support.secret_server import SecretServer, run_secret_server

import railscope_agent.config
import railscope_collector.config
from railscope import settings
from railscope_collector.access.credentials import Credentials, Role, digest_token
from railscope_collector.access.tokens_file import parse_credentials
from railscope_collector.access.trial_access import TrialAccess

CHART = ROOT / "deploy/helm/railscope"
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


@pytest.fixture(name="packed", scope="module")
def _packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not HELM.exists():
        pytest.skip("helm is missing: run `make servers`")
    directory = tmp_path_factory.mktemp("chart")
    build.write_chart(ROOT, directory, directory / "work", 0)
    (packed,) = directory.glob("*.tgz")
    return packed


@pytest.fixture(name="rendered", scope="module")
def _rendered(packed: Path) -> Objects:
    return parse(run(HELM, "template", "railscope", packed, "--set", "monitoring.enabled=true"))


@pytest.fixture(name="trial", scope="module")
def _trial(packed: Path) -> Objects:
    given = "trial=true,monitoring.enabled=true"
    return parse(run(HELM, "template", "railscope", packed, "--set", given))


@pytest.fixture(name="simulated", scope="module")
def _simulated(packed: Path) -> Objects:
    given = "trial=true,simulatedNodes=4,monitoring.enabled=true"
    return parse(run(HELM, "template", "railscope", packed, "--set", given))


@pytest.fixture(name="applied", scope="module")
def _applied() -> Objects:
    return {**kustomized("deploy/kubernetes"), **kustomized("deploy/kubernetes/monitoring")}


def pod(objects: Objects, program: str) -> dict[str, Any]:
    kind = "DaemonSet" if program == "agent" else "StatefulSet"
    template: dict[str, Any] = objects[kind, f"railscope-{program}"]["spec"]["template"]
    return template


# Manifests and chart -----------------------------------------------------------------------------


def test_the_packed_chart_renders_to_the_manifests(
    packed: Path, rendered: Objects, applied: Objects
):
    assert without_empty(rendered) == without_empty(
        {key: item for key, item in applied.items() if key[0] != "Namespace"}
    )
    by_default = parse(run(HELM, "template", "railscope", packed)).keys()
    assert by_default == kustomized("deploy/kubernetes").keys() - {("Namespace", "railscope")}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "given", ["trial=false", "trial=true,monitoring.enabled=true", "trial=true,simulatedNodes=4"]
)
def test_helm_finds_nothing_wrong_in_the_chart(packed: Path, given: str):
    for path in (packed, CHART):
        run(HELM, "lint", "--strict", path, "--set", given)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "given",
    [
        "other=1",
        "simulatedNodes=21",  # a trial admits 20
        "agent.nodeSelector.pool=true",  # labels are texts
        "collector.storage=20GB",
        "agent.maxUnavailable=0",  # no pod could be replaced
    ],
)
def test_helm_rejects_an_unknown_value_and_a_wrong_type(packed: Path, given: str):
    if not HELM.exists():
        pytest.skip("helm is missing: run `make servers`")
    command = [str(HELM), "template", "railscope", str(packed), "--set", given]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode != 0
    assert "schema" in outcome.stderr


# Validity ----------------------------------------------------------------------------------------


@pytest.fixture(name="kubernetes_validate")
def _kubernetes_validate() -> Any:
    """Return the validator, whose import takes a second of each worker."""
    return importlib.import_module("kubernetes_validate")


def is_of_kubernetes(item: Mapping[str, Any]) -> bool:
    return not item["apiVersion"].startswith("monitoring.coreos.com/")


@pytest.mark.thorough
def test_the_manifests_and_the_chart_are_valid(
    rendered: Objects,
    applied: Objects,
    trial: Objects,
    simulated: Objects,
    kubernetes_validate: Any,
):
    for objects in (rendered, applied, trial, simulated):
        checked = [item for item in objects.values() if is_of_kubernetes(item)]
        assert len(checked) > 20
        for item in checked:
            kubernetes_validate.validate(item, NEWEST, strict=True)


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


@pytest.mark.thorough
def test_objects_and_release_are_within_the_limits_of_kubernetes(packed: Path, rendered: Objects):
    sizes = {key: len(json.dumps(item).encode()) for key, item in rendered.items()}
    assert max(sizes.values()) < MAX_APPLIED_BYTES, sizes
    # As Helm stores it: files and templates in base64, with the manifests, compressed, in base64.
    with tarfile.open(packed) as archive:
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


@pytest.mark.thorough
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


# Trial -------------------------------------------------------------------------------------------


def secret(objects: Objects, name: str, key: str) -> str:
    return base64.b64decode(objects["Secret", name]["data"][key]).decode()


@pytest.mark.thorough
def test_simulated_nodes_replace_agents_and_need_no_rights_or_volume(
    trial: Objects, simulated: Objects
):
    agents, nodes = ("DaemonSet", "railscope-agent"), ("StatefulSet", "railscope-simulated")
    assert trial.keys() ^ simulated.keys() == {agents, nodes}
    assert simulated[nodes]["spec"]["replicas"] == 4
    for kind, name in (nodes, ("StatefulSet", "railscope-collector")):
        text = json.dumps(simulated[kind, name])
        words = ("hostPath", "hostNetwork", "hostPID", "volumeClaimTemplates", "nodeSelector")
        assert not [word for word in words if word in text]
        spec = simulated[kind, name]["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["containers"][0]["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["agent", "simulated"])
def test_an_agent_of_a_trial_is_admitted_for_its_node(
    kind: str, simulated: Objects, trial: Objects, tmp_path: Path
):
    """Kubernetes replaces $(NAME) in a variable by the value of an earlier one."""
    trial = simulated if kind == "simulated" else trial
    (container,) = pod(trial, kind)["spec"]["containers"]
    environment = {"RAILSCOPE_AGENT_NODE": "gpu-001"}
    for entry in container["env"]:
        if key := entry.get("valueFrom", {}).get("secretKeyRef"):
            environment[entry["name"]] = secret(trial, key["name"], key["key"])
        elif "value" in entry:
            environment[entry["name"]] = re.sub(
                r"\$\((\w+)\)", lambda name: environment[name[1]], entry["value"]
            )
    (container,) = pod(trial, "collector")["spec"]["containers"]
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    (mount,) = [m for m in container["volumeMounts"] if m["name"] == "trial"]
    assert given["RAILSCOPE_COLLECTOR_TRIAL_TOKEN_FILE"] == f"{mount['mountPath']}/token"
    (tmp_path / "token").write_text(secret(trial, "railscope-trial", "token"))
    access = TrialAccess.from_file(str(tmp_path / "token"), tmp_path)
    assert access
    result = access.authenticate(
        [f"Bearer {environment['RAILSCOPE_AGENT_COLLECTOR__TOKEN']}"], Credentials()
    )
    assert result.credential
    assert result.credential.label == "node/gpu-001"
    variables = {n: v for n, v in environment.items() if n.startswith("RAILSCOPE_AGENT_")}
    loaded: Any = settings.load(PROGRAMS["agent"][0], file=None, environment=variables, prefix=PROGRAMS["agent"][1])  # fmt: skip
    assert loaded.collector.token_file == ""


@pytest.mark.thorough
def test_the_token_of_prometheus_in_a_trial_is_an_operators_and_on_no_node(trial: Objects):
    token = secret(trial, "railscope-collector-metrics", "token")
    (entry,) = parse_credentials(
        secret(trial, "railscope-collector", "tokens.toml")
    ).entries.items()
    assert entry[0].value == digest_token(token)
    assert entry[1].credential.role is Role.OPERATOR
    mounted = json.dumps(pod(trial, "agent"))
    assert "railscope-collector" not in mounted
    tokens = [secret(trial, f"railscope-{n}", "token") for n in ("trial", "agent-metrics", "collector-metrics")]  # fmt: skip
    assert len({*tokens}) == 3
    assert min(map(len, tokens)) == 43


OF_RELEASE = {
    "labels": {"app.kubernetes.io/managed-by": "Helm"},
    "annotations": {
        "meta.helm.sh/release-name": "railscope",
        "meta.helm.sh/release-namespace": "railscope",
    },
}
"""Metadata that Helm adds to the objects of a release, and requires of those that exist."""


@pytest.fixture(name="secrets_chart", scope="module")
def _secrets_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart with the Secrets of a trial only: the API server has no other kinds."""
    directory = tmp_path_factory.mktemp("secrets") / "railscope"
    others = shutil.ignore_patterns("rules*", "dashboards*", *(f"{name}.yaml" for name in ("agent", "collector", "monitors")))  # fmt: skip
    shutil.copytree(CHART, directory, ignore=others)
    return directory


def upgrade(
    server: SecretServer, secrets_chart: Path, home: Path, given: str = "trial=true"
) -> subprocess.CompletedProcess[str]:
    """Render the Secrets as `helm upgrade` does, and store them."""
    if not HELM.exists():
        pytest.skip("helm is missing: run `make servers`")
    address = f"http://127.0.0.1:{server.server_port}"
    options = ["--set", given, "--dry-run=server", "--disable-openapi-validation"]
    outcome = subprocess.run(
        [HELM, "template", "railscope", secrets_chart, "--namespace", "railscope", "--kube-apiserver", address, *options],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    for (kind, name), item in parse(outcome.stdout).items():
        if kind == "Secret":
            server.store(name, item["data"])
    return outcome


@pytest.mark.thorough
def test_an_upgrade_changes_no_token_of_a_trial(secrets_chart: Path, tmp_path: Path):
    with run_secret_server() as server:
        assert upgrade(server, secrets_chart, tmp_path).returncode == 0
        names = {"railscope-trial", "railscope-collector", "railscope-agent-metrics", "railscope-collector-metrics"}  # fmt: skip
        assert server.secrets.keys() == names
        tokens = server.text("railscope-collector", "tokens.toml")
        server.put_text("railscope-collector", **{"tokens.toml": f"{tokens}[nodes]\n"})
        for item in server.secrets.values():
            item["metadata"] |= OF_RELEASE
        before = {name: dict(server.secrets[name]["data"]) for name in names}
        assert upgrade(server, secrets_chart, tmp_path).returncode == 0
        assert {name: server.secrets[name]["data"] for name in names} == before


@pytest.mark.thorough
@pytest.mark.parametrize("change", [(0, 0), (0, 2), (4, 0), (4, 2)])
def test_a_release_has_simulated_nodes_or_real_ones_for_all_its_life(
    change: tuple[int, int], packed: Path, rendered: Objects, simulated: Objects, tmp_path: Path
):
    """A collector that has metered simulated nodes must not go on to bill real ones."""
    before, after = change
    objects = simulated if before else rendered
    with run_secret_server() as server:
        collector = objects["StatefulSet", "railscope-collector"]
        owned = {**collector, "metadata": collector["metadata"] | OF_RELEASE}
        server.stateful_sets["railscope-collector"] = owned
        outcome = upgrade(server, packed, tmp_path, f"trial=true,simulatedNodes={after}")
    is_allowed = bool(before) == bool(after)
    assert outcome.returncode == (0 if is_allowed else 1), outcome.stderr
    assert ("exclude each other" in outcome.stderr) != is_allowed
