"""`deploy/install_files.sh`: everything but the program, with the given directories."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from support.alert_rules import ROOT, RULES

from railscope import settings
from railscope_collector.config import PREFIX, CollectorSettings

USUAL = ("/opt/railscope", "/etc/railscope", "/var/lib/grafana/dashboards/railscope")


def install(root: Path) -> str:
    """Install into a root of its own; return what the installer prints."""
    directories = (root / name for name in ("opt/rs", "etc/rs", "units", "bin"))
    outcome = subprocess.run(
        [ROOT / "deploy/install_files.sh", *directories], capture_output=True, text=True, check=True
    )
    return outcome.stdout


@pytest.fixture(name="root", scope="module")
def _root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation that no test changes."""
    root = tmp_path_factory.mktemp("root")
    assert install(root) == ""
    return root


def test_no_file_names_a_directory_that_was_not_chosen(root: Path):
    files = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 60
    named = {
        str(path.relative_to(root))
        for path in files
        for usual in USUAL
        if usual in path.read_text()
    }
    assert not named


def test_the_collector_and_its_check_find_the_tokens_beside_the_settings(root: Path):
    """`make install CONFIGURATION=` chooses where the tokens are, too."""
    loaded = settings.load(
        CollectorSettings, file=root / "etc/rs/collector.toml", prefix=PREFIX, environment={}
    )
    assert loaded.tokens_file == f"{root}/etc/rs/tokens.toml"
    assert Path(loaded.tokens_file).is_file()


@pytest.mark.parametrize(
    ("script", "command", "variables"),
    [
        ("prolog", "claim start", {"ID", "GPUS", "ACCOUNT", "USER", "CUDA_VISIBLE_DEVICES"}),
        ("epilog", "claim end", {"ID"}),
        ("prolog_health", "health", {"ID", "GPUS"}),
        ("health_check", "health", set()),
    ],
)
def test_slurms_scripts_use_what_is_installed_and_of_the_environment_only_the_job(
    tmp_path: Path, script: str, command: str, variables: set[str]
):
    install(tmp_path)
    program = tmp_path / "opt/rs/bin/railscope"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        '#!/bin/sh\necho "$@" >"$0.arguments"\ncat /proc/$$/environ >"$0.variables"\n'
    )
    program.chmod(0o755)
    job = {f"SLURM_JOB_{name}": f"7 {name}" for name in ("ID", "GPUS", "ACCOUNT", "USER")}
    job["CUDA_VISIBLE_DEVICES"] = "MIG-7"
    others = ("RAILSCOPE", "RAILSCOPE_AGENT_TENANCY__SOCKET", "PYTHONPATH", "SLURM_CONF", "PATH")
    environment = job | {name: str(tmp_path / "other") for name in others}
    file = tmp_path / f"opt/rs/share/railscope/slurm/{script}.sh"
    subprocess.run([file], env=environment, capture_output=True, check=True)
    arguments = program.with_name("railscope.arguments").read_text()
    assert arguments.startswith(command)
    assert arguments.endswith(f" --config {tmp_path}/etc/rs/agent.toml\n")
    given = program.with_name("railscope.variables").read_text().strip("\0").split("\0")
    passed = {name: job[name] for name in job if name.removeprefix("SLURM_JOB_") in variables}
    assert dict(each.split("=", 1) for each in given) == {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        **passed,
    }


def test_prometheus_finds_every_rule_where_it_is_installed(root: Path):
    directory = root / "etc/rs/prometheus"
    named = yaml.safe_load((directory / "prometheus.yml").read_text())["rule_files"]
    assert sorted(directory / name for name in named) == sorted((directory / "rules").glob("*.yml"))
    assert len(named) == len(RULES)
    if shutil.which("promtool") is None:
        pytest.skip("promtool is missing: install the Debian package prometheus")
    command = ["promtool", "check", "config", str(directory / "prometheus.yml")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_prometheus_accepts_the_configuration_that_sends_metrics_elsewhere(tmp_path: Path):
    if shutil.which("promtool") is None:
        pytest.skip("promtool is missing: install the Debian package prometheus")
    page = (ROOT / "docs/integrations.md").read_text()
    section = page.split("## Send metrics elsewhere\n")[1].split("### Prometheus\n")[1]
    file = tmp_path / "prometheus.yml"
    file.write_text(section.split("```yaml\n")[1].split("```")[0])
    # Not whether the token exists: it is that of an administrator.
    command = ["promtool", "check", "config", "--syntax-only", str(file)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    assert outcome.returncode == 0, outcome.stderr


def test_dashboards_runbooks_and_scripts_are_installed(root: Path):
    share = root / "opt/rs/share/railscope"
    for of in (
        "dashboards",
        "runbooks",
        "slurm",
        "systemd",
        "provisioning",
        "nagios",
        "node-problem-detector",
    ):
        assert any((share / of).rglob("*.*")), of
    assert (share / "slurm/prolog.sh").stat().st_mode & 0o111
    assert f"{root}/opt/rs/bin/railscope" in (share / "slurm/prolog.sh").read_text()
    provider = yaml.safe_load((share / "provisioning/dashboards/railscope.yml").read_text())
    (first,) = provider["providers"]
    assert any(Path(first["options"]["path"]).glob("*.json"))


def test_the_command_of_the_runbooks_is_on_the_path(root: Path):
    assert (root / "bin/railscope").readlink() == root / "opt/rs/bin/railscope"


def test_the_completion_of_each_shell_is_installed_beside_the_command(root: Path):
    for name, installed in {
        "railscope.bash": "bash-completion/completions/railscope",
        "_railscope": "zsh/site-functions/_railscope",
        "railscope.fish": "fish/vendor_completions.d/railscope.fish",
    }.items():
        assert (root / "share" / installed).read_text() == (
            ROOT / "deploy/completions" / name
        ).read_text()


def test_what_the_administrator_changed_stays(tmp_path: Path):
    assert install(tmp_path) == ""
    agent, rules = tmp_path / "etc/rs/agent.toml", tmp_path / "etc/rs/prometheus/rules/gpu.yml"
    agent.write_text('node = "mine"\n')
    rules.write_text("groups: []\n")
    output = install(tmp_path)
    assert agent.read_text() == 'node = "mine"\n'
    assert rules.read_text() == "groups: []\n"
    assert output == f"kept {rules}; the new version is {rules}.new\n"
    assert "RailscopeGpuXid" in rules.with_name("gpu.yml.new").read_text()
