"""Tokens of the nodes of a Kubernetes cluster: add_nodes.sh with kubectl and an API server that has Secrets only."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.packages import ROOT
from support.secret_server import SecretServer, run_secret_server

from railscope_collector.access.credentials import Role, digest_token
from railscope_collector.access.tokens_file import parse_credentials

KUBECTL = ROOT / ".helm/kubectl"


class KubernetesSite:
    """Directory of an administrator, and the cluster."""

    def __init__(self, directory: Path, server: SecretServer) -> None:
        self.server = server
        self.tokens = directory / "tokens"
        program = [KUBECTL, "--server", f"http://127.0.0.1:{server.server_port}", "--namespace", "railscope"]  # fmt: skip
        self.environment = {
            "KUBECTL": " ".join(map(str, [*program, "--cache-dir", directory / "cache"])),
            "HOME": str(directory),
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT),
        }

    def add(self, *nodes: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        outcome = subprocess.run(
            [str(ROOT / "deploy/kubernetes/add_nodes.sh"), str(self.tokens), *options],
            input="".join(f"node/{name}\n" for name in nodes),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not list(self.tokens.glob(".*"))
        return outcome

    def tokens_toml(self) -> str:
        return self.server.text("railscope-collector", "tokens.toml")

    def accepted(self) -> dict[str, str]:
        """Names of the token files, and the nodes as which the collector accepts them."""
        entries = {
            key.value: entry.credential
            for key, entry in parse_credentials(self.tokens_toml()).entries.items()
        }
        found = {}
        for path in self.tokens.iterdir():
            credential = entries[digest_token(path.read_text().strip())]
            assert credential.role is Role.NODE
            assert path.stat().st_mode & 0o777 == 0o600
            found[path.name] = credential.name
        return found


@pytest.fixture(name="site")
def _site(tmp_path: Path) -> Iterator[KubernetesSite]:
    if not KUBECTL.exists():
        pytest.skip("kubectl is missing: run `make servers`")
    with run_secret_server() as server:
        for name in ("agent", "collector"):
            server.put_text(f"railscope-{name}-metrics", token="secret")  # noqa: S106
        yield KubernetesSite(tmp_path, server)


def of_prometheus(site: KubernetesSite) -> str:
    """Token of Prometheus at the collector; it is an operator's."""
    token = site.server.text("railscope-collector-metrics", "token")
    (credential,) = [
        entry.credential
        for key, entry in parse_credentials(site.tokens_toml()).entries.items()
        if key.value == digest_token(token)
    ]
    assert credential.role is Role.OPERATOR
    return token


def test_nodes_get_tokens_that_the_collector_accepts_and_no_secret_has(site: KubernetesSite):
    site.server.secrets.clear()
    outcome = site.add("gpu-001", "gpu-002.example")
    assert outcome.returncode == 0, outcome.stderr
    assert f"created: 2 tokens in {site.tokens}; kept: 0\n" in outcome.stderr
    assert site.accepted() == {"gpu-001.token": "gpu-001", "gpu-002.example.token": "gpu-002.example"}  # fmt: skip
    assert site.server.secrets.keys() == {"railscope-collector", "railscope-agent-metrics", "railscope-collector-metrics"}  # fmt: skip
    assert site.server.secrets["railscope-collector"]["data"].keys() == {"tokens.toml"}
    prometheus = of_prometheus(site)
    assert len({prometheus, site.server.text("railscope-agent-metrics", "token")}) == 2

    before = {path.name: path.read_text() for path in site.tokens.iterdir()}
    assert site.add("gpu-001", "gpu-002.example", "gpu-003").returncode == 0
    assert len(site.accepted()) == 3
    after = {path.name: path.read_text() for path in site.tokens.iterdir()}
    assert after.items() > before.items()
    assert of_prometheus(site) == prometheus


@pytest.mark.thorough
def test_nodes_that_left_are_removed_on_request(site: KubernetesSite):
    site.add("gpu-001", "gpu-002")
    assert "gpu-002: not in standard input: kept" in site.add("gpu-001").stderr
    assert len(site.accepted()) == 2
    assert site.add("gpu-001", options=("--revoke-unlisted",)).returncode == 0
    assert site.accepted() == {"gpu-001.token": "gpu-001"}
    assert "gpu-002" not in site.tokens_toml()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["railscope-agent-metrics", "railscope-collector", "railscope-collector-metrics"])  # fmt: skip
def test_a_secret_that_cannot_be_read_is_not_taken_for_a_missing_one(
    site: KubernetesSite, name: str
):
    site.server.secrets.clear()
    site.add("gpu-001")
    before = dict(site.server.secrets)
    files = {path.name: path.read_text() for path in site.tokens.iterdir()}
    site.server.unreadable = {name}
    outcome = site.add("gpu-001", "gpu-002")
    assert outcome.returncode == 1
    assert "InternalError" in outcome.stderr
    assert site.server.secrets == before
    assert {path.name: path.read_text() for path in site.tokens.iterdir()} == files


@pytest.mark.thorough
def test_a_change_by_others_in_between_is_never_overwritten(site: KubernetesSite):
    site.add("gpu-001")
    revoked = "\n".join(
        line for line in site.tokens_toml().splitlines() if not line.startswith('"gpu-001"')
    )
    server = site.server
    server.before_patch.append(
        lambda: server.put_text("railscope-collector", **{"tokens.toml": f"{revoked}\n"})
    )
    outcome = site.add("gpu-001", "gpu-002")
    assert outcome.returncode == 1
    assert "Conflict" in outcome.stderr
    assert site.tokens_toml() == f"{revoked}\n"
    assert not (site.tokens / "gpu-002.token").exists()
    (site.tokens / "gpu-001.token").unlink()
    assert site.add("gpu-002").returncode == 0
    assert site.accepted() == {"gpu-002.token": "gpu-002"}


def documented(text: str) -> str:
    """The commands of the page that contain a text, with the kubectl of the tests."""
    page = (ROOT / "docs/kubernetes.md").read_text()
    (block,) = [each for each in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) if text in each]
    return str(block).replace("kubectl --namespace railscope", "$KUBECTL")


@pytest.mark.thorough
def test_a_node_that_was_reinstalled_gets_another_token_as_documented(site: KubernetesSite):
    nodes = ("gpu-001", "gpu-002", "gpu-003")
    site.add(*nodes)
    before = {path.name: path.read_text() for path in site.tokens.iterdir()}
    for path in site.tokens.iterdir():
        path.unlink()
    outcome = site.add(*nodes)
    assert outcome.returncode == 0
    assert "gpu-003: kept its entry" in outcome.stderr
    commands = documented("grep -vx node/gpu-003")
    nodes_of_cluster = "kubectl get nodes -l nvidia.com/gpu.present=true -o name"
    assert commands.count(nodes_of_cluster) == 2
    listed = f"printf 'node/%s\\n' {' '.join(nodes)}"
    script = commands.replace(nodes_of_cluster, listed).replace(
        "~/railscope-tokens", str(site.tokens)
    )
    subprocess.run(
        ["sh", "-eu", "-c", script],
        env=site.environment,
        cwd=ROOT / "deploy/kubernetes",
        capture_output=True,
        check=True,
    )
    assert site.accepted() == {"gpu-003.token": "gpu-003"}
    assert (site.tokens / "gpu-003.token").read_text() != before["gpu-003.token"]
    entries = parse_credentials(site.tokens_toml()).entries.values()
    assert {entry.credential.name for entry in entries} == {*nodes}


@pytest.mark.thorough
def test_the_command_that_stores_a_token_ends_while_its_input_stays_open(tmp_path: Path):
    """`kubectl debug` never closes the standard input of the container."""
    tokens, host = tmp_path / "railscope-tokens", tmp_path / "host"
    (host / "etc").mkdir(parents=True)
    tokens.mkdir()
    (tokens / "gpu-001.token").write_text("token-of-a-node\n")
    script = tmp_path / "kubectl"
    script.write_text(
        "#!/bin/sh\n"
        f"if [ $1 = delete ]; then exit; fi; cd {tmp_path}\n"
        'while [ "$1" != -- ]; do shift; done; shift\n'
        'mkfifo input; exec 3<>input; cat >&3; exec "$@" <input\n'
    )
    script.chmod(0o755)
    commands = documented("kubectl --namespace railscope debug").replace("/host/", f"{host}/")
    subprocess.run(
        ["sh", "-eu", "-c", commands],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "KUBECTL": str(script)},
        timeout=60,
        check=True,
    )
    (path,) = (host / "etc/railscope").iterdir()
    assert path.name == "collector.token"
    assert path.read_text() == "token-of-a-node\n"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("nodes", "text", "problem"),
    [(("a/b",), "", "invalid node name"), ((), "", "no node"), (("a",), "[operators]\nx = 1\n", "invalid digest")],
)  # fmt: skip
def test_invalid_input_changes_nothing(
    site: KubernetesSite, nodes: tuple[str, ...], text: str, problem: str
):
    site.server.put_text("railscope-collector", **{"tokens.toml": text})
    outcome = site.add(*nodes)
    assert outcome.returncode == 1
    assert problem in outcome.stderr
    assert site.tokens_toml() == text
    assert not list(site.tokens.iterdir())
