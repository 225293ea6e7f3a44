"""Container image: what the Dockerfile states, and agent and collector run as it states without rights on a read-only root."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.image_root import DOCKERFILE, ImageRoot, ImageSandbox, image_settings
from support.packages import ROOT, FreshRoot, dependencies, require
from test_kubernetes import HELM, parse, pod, run

import railscope_agent.config
import railscope_collector.config

pytestmark = [
    pytest.mark.timeout(900),  # the first of these tests builds all packages
    pytest.mark.thorough,  # so does `make release`, which runs these tests on its build
]
CAPTURE = ROOT / "tests/captures/hgx-h100-idle"
NODE = "gpu-001"
TOKENS = "/run/credentials/railscope-collector.service"
NODE_TOKEN = "/run/credentials/railscope-agent.service/collector.token"  # noqa: S105 - a path
SCRAPE = """\
import sys, time, urllib.error, urllib.request

url, token, wanted = sys.argv[1:]
end = time.monotonic() + 90
while True:
    try:
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=10) as response:
            text = response.read().decode()
        problem = text
    except (OSError, urllib.error.HTTPError) as error:
        text, problem = "", str(error)
    if text and wanted in text:
        break
    if time.monotonic() > end:
        sys.exit(f"{url}: {wanted!r} not found: {problem[-2000:]}")
    time.sleep(0.2)
print(text)
"""
"""Requests a document until it contains a text."""


def test_the_dockerfile_has_the_ports_user_and_directories_of_the_programs():
    found = image_settings()
    kinds = (railscope_agent.config.AgentSettings, railscope_collector.config.CollectorSettings)
    assert set(found["EXPOSE"].split()) == {kind().listen.rpartition(":")[2] for kind in kinds}
    assert set(found["VOLUME"].split()) == {kind().state_directory for kind in kinds}
    assert (found["USER"], found["ENTRYPOINT"]) == ("65532:65532", '["railscope"]')
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    locks = re.findall(r"deploy/requirements-\w+\.lock", text)
    copied = [name for line in re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE) for name in line.split()]  # fmt: skip
    assert all((ROOT / name).exists() for name in (*locks, *copied))


@pytest.fixture(name="image", scope="module")
def _image(built_all: Path, tmp_path_factory: pytest.TempPathFactory) -> ImageRoot:
    """A root with the programs of the packages, as an image has them."""
    if os.geteuid() != 0:
        pytest.skip("only root may install packages")
    require("mmdebstrap", "mmdebstrap")
    debs = sorted(built_all.glob("*.deb"))
    needed = {package for deb in debs for package in dependencies(deb)}
    root = FreshRoot(tmp_path_factory.mktemp("image") / "root", *needed, "dash", "coreutils")
    root.dpkg("--install", *debs)
    return ImageRoot(root.path)


def containers() -> dict[str, dict[str, object]]:
    found = {}
    for program in ("agent", "collector"):
        text = (ROOT / f"deploy/kubernetes/{program}.yaml").read_text()
        for item in yaml.load_all(text, yaml.CSafeLoader):
            if item["kind"] in {"DaemonSet", "StatefulSet"}:
                (found[program],) = item["spec"]["template"]["spec"]["containers"]
    return found


def environment_of(container: dict[str, object]) -> dict[str, str]:
    entries = container["env"]
    assert isinstance(entries, list)
    return {entry["name"]: entry.get("value", NODE) for entry in entries}


def owned(path: Path, text: str | None = None) -> Path:
    if text is None:
        path.mkdir()
    else:
        path.write_text(text)
    os.chown(path, 65532, 65532)
    path.chmod(0o700 if text is None else 0o400)
    return path


@pytest.fixture(name="sandbox")
def _sandbox(image: ImageRoot, tmp_path: Path) -> Iterator[ImageSandbox]:
    """The image with the mounts of the manifests, and a tokens file for the node and Prometheus."""
    require("ip", "iproute2")
    digest = {name: hashlib.sha256(f"token-of-{name}".encode()).hexdigest() for name in (NODE, "prometheus")}  # fmt: skip
    tokens = (
        f'[operators]\nprometheus = "sha256:{digest["prometheus"]}"\n'
        f'[nodes]\n{NODE} = "sha256:{digest[NODE]}"\n'
    )
    settings = tmp_path / "settings"
    settings.mkdir()
    for program in ("agent", "collector"):
        text = (ROOT / f"deploy/kubernetes/{program}.yaml").read_text()
        for item in yaml.load_all(text, yaml.CSafeLoader):
            for name, content in item.get("data", {}).items():
                (settings / name).write_text(content)
    (tmp_path / "hosts").write_text("127.0.0.1 localhost railscope-collector\n")
    tmp_path.chmod(0o755)
    mounts = {
        "/etc/railscope": settings,
        "/etc/hosts": tmp_path / "hosts",
        f"{TOKENS}/tokens.toml": owned(tmp_path / "tokens.toml", tokens),
        NODE_TOKEN: owned(tmp_path / "node.token", f"token-of-{NODE}"),
        "/run/credentials/railscope-agent-metrics/token": owned(tmp_path / "metrics.token", "secret"),
        "/var/lib/railscope-agent": owned(tmp_path / "agent"),
        "/var/lib/railscope-collector": owned(tmp_path / "collector"),
        "/tmp": owned(tmp_path / "tmp"),  # noqa: S108 - of the image
        "/proc": Path("/proc"),
        "/dev": Path("/dev"),
        "/capture": CAPTURE,
    }  # fmt: skip
    with image.sandbox(mounts) as sandbox:
        yield sandbox


def test_agent_and_collector_run_in_the_image_as_the_manifests_start_them(
    sandbox: ImageSandbox, tmp_path: Path
):
    """User 65532 without capabilities, a read-only root; default ports; the agent replays a capture."""
    python = ("/opt/railscope/bin/python", "-I", "-c")
    written = "import pathlib; pathlib.Path('/usr/x').write_text('')"
    with pytest.raises(AssertionError, match=r"Read-only file system|Permission denied"):
        sandbox.run(*python, written)
    status = sandbox.run(*python, "print(open('/proc/self/status').read())")
    assert "\nUid:\t65532\t65532\t65532\t65532\n" in status
    assert "\nCapEff:\t0000000000000000\n" in status
    assert "\nNoNewPrivs:\t1\n" in status

    def scrape(url: str, token: str, wanted: str) -> str:
        return sandbox.run(*python, SCRAPE, url, token, wanted)

    described = containers()
    programs = {
        name: sandbox.started(
            *map(str, described[name]["args"]),  # type: ignore[call-overload]
            *(["--replay", "/capture"] if name == "agent" else []),
            environment=environment_of(described[name]),
            log=tmp_path / f"{name}.log",
        )
        for name in ("collector", "agent")
    }
    with programs["collector"], programs["agent"]:
        for container in described.values():
            (port,) = container["ports"]  # type: ignore[misc,attr-defined]
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                get = container[kind]["httpGet"]  # type: ignore[index]
                assert get["port"] == port["name"]
                scrape(f"http://127.0.0.1:{port['containerPort']}{get['path']}", "", "")
        of_agent = scrape("http://127.0.0.1:9469/metrics", "secret", "railscope_gpu_info{")
        assert "railscope_agent_dropped_frames_total" in of_agent
        token = "token-of-prometheus"  # noqa: S105 - of this test
        scrape("http://127.0.0.1:9470/metrics", token, "railscope_rail_sum_gpu_power_watts")
        scrape("http://127.0.0.1:9470/api/v1/nodes", token, f'"{NODE}"')
    logs = [(tmp_path / f"{name}.log").read_text() for name in programs]
    assert not [line for text in logs for line in text.splitlines() if " error " in line]


def test_a_simulated_node_runs_in_the_image_as_the_chart_starts_it(
    sandbox: ImageSandbox, tmp_path: Path
):
    """User 65532 without capabilities, a read-only root, and no file of the machine."""
    values = "trial=true,simulatedNodes=1"
    text = run(HELM, "template", "railscope", ROOT / "deploy/helm/railscope", "--set", values)
    (container,) = pod(parse(text), "simulated")["spec"]["containers"]
    environment = environment_of(container) | {
        "RAILSCOPE_AGENT_COLLECTOR__TOKEN": f"token-of-{NODE}",
    }
    log = tmp_path / "simulated.log"
    with sandbox.started(*container["args"], environment=environment, log=log):
        sandbox.run("/opt/railscope/bin/python", "-I", "-c", SCRAPE, "http://127.0.0.1:9469/metrics", "secret", "railscope_gpu_info{")  # fmt: skip
    assert not [line for line in log.read_text().splitlines() if " error " in line]


def test_the_image_reports_its_version(sandbox: ImageSandbox):
    assert "railscope, version" in sandbox.run("railscope", "--version")
