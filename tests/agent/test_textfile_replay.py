"""A recorded node has its textfiles in the capture, and a running agent exposes and records them."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

from click.testing import CliRunner
from support.textfiles import own_series, values_of
from support.tree import make_tree

from railscope_agent.commands import agent

DIRECTORY = "/var/lib/railscope/textfile"
CASES = Path(__file__).with_name("textfiles")
_STATES = re.compile(r'^railscope_textfile_state\{file="[^"]*",state="(\w+)"\} 1$', re.MULTILINE)


def run(*arguments: str | Path) -> str:
    outcome = CliRunner().invoke(agent, [str(argument) for argument in arguments])
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def tree_with_textfiles(tmp_path: Path) -> tuple[Path, Path]:
    """Return a copied tree with the files of all cases, and settings that name their directory."""
    root, config = make_tree(tmp_path / "root"), tmp_path / "agent.toml"
    config.write_text(f'[textfile]\ndirectory = "{DIRECTORY}"\n')
    target = root / DIRECTORY[1:]
    target.mkdir(parents=True)
    for path in CASES.glob("*/*.prom"):
        shutil.copy(path, target / f"{path.parent.name}_{path.name}")
    (target / "link.prom").symlink_to("/etc/passwd")
    return root, config


def test_a_replay_has_the_textfiles_of_the_node(tmp_path: Path) -> None:
    root, config = tree_with_textfiles(tmp_path)
    live = run("once", "--root", root, "--config", config)
    run("record", "--root", root, "--config", config, "--seconds", "0", tmp_path / "capture")
    shutil.rmtree(root)
    replayed = run("once", "--replay", tmp_path / "capture", "--config", config)
    assert own_series(replayed) == own_series(live)
    assert _STATES.findall(replayed) == _STATES.findall(live)
    assert "site_temperature_celsius 1000\n" in replayed


def test_a_redacted_capture_has_the_same_values_and_states(tmp_path: Path) -> None:
    root, config = tree_with_textfiles(tmp_path)
    live = run("once", "--root", root, "--config", config)
    capture = tmp_path / "capture"
    run("record", "--root", root, "--config", config, "--seconds", "0", "--redact", capture)
    assert "Zürich" not in (capture / "timeline.jsonl").read_text()
    replayed = run("once", "--replay", capture, "--config", config)
    assert Counter(_STATES.findall(replayed)) == Counter(_STATES.findall(live))
    assert Counter(values_of(own_series(replayed)).values()) == Counter(
        values_of(own_series(live)).values()
    )


def test_the_json_of_a_read_has_exact_values(tmp_path: Path) -> None:
    root, config = tree_with_textfiles(tmp_path)
    entries = json.loads(run("once", "--format", "json", "--root", root, "--config", config))
    found = {entry["series"]: entry["value"] for entry in entries if "series" in entry}
    assert found['site_requests_total{code="200"}'] == "18446744073709551615"
    assert not any("mantissa" in entry.get("metric", "") for entry in entries)


def test_findings_name_the_rejected_files(tmp_path: Path) -> None:
    root, config = tree_with_textfiles(tmp_path)
    outcome = CliRunner().invoke(agent, ["check", "--root", str(root), "--config", str(config)])
    assert "textfile link.prom" in outcome.output
    assert "not_regular" in outcome.output
