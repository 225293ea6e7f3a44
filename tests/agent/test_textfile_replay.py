"""A recorded node has its textfiles in the capture, and a running agent exposes and records them."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import aiohttp
from click.testing import CliRunner
from support.reading import ORIGIN, at_period
from support.sampling import run_sampler
from support.textfiles import TextfileDirectory, own_series, page_of, values_of
from support.tree import make_tree

from railscope.capture import Capture, CaptureMetadata, read_capture
from railscope.frame import Frame
from railscope.http_server import HttpServer
from railscope_agent.commands import agent
from railscope_agent.config import TextfileSettings
from railscope_agent.endpoint.metrics_endpoint import MetricsEndpoint
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.host.stepped_host import SteppedHost
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.textfile import TextfileSource

DIRECTORY = "/var/lib/railscope/textfile"
CASES = Path(__file__).with_name("textfiles")
STORY = ("a 1\n", "a 2\nb 1\n", "a two\n", "a 3\n")
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


async def test_a_running_agent_exposes_the_files_over_http(tmp_path: Path) -> None:
    files = TextfileDirectory(tmp_path)
    sources = [at_period(TextfileSource(files.settings), 1.0)]
    async with run_sampler(files.host, sources) as run:  # type: ignore[arg-type]  # on its clock
        statuses = run.sampler.statuses
        page = MetricsEndpoint("node-1", statuses.values, lambda: run.clock.now().boot_ns, "")
        server = HttpServer(page.respond)
        _, port = await server.start("127.0.0.1:0", None)
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                for text in STORY:
                    files.write({"a.prom": text, "b.prom": "good 0.10\n"})
                    await run.step()
                    async with session.get("/metrics?collect[]=textfile") as answer:
                        found = values_of(own_series(await answer.text()))
                    accepted = "" if "two" in text else text
                    assert found == values_of(accepted + "good 0.10\n")
        finally:
            await server.close()


def recorded_story(tmp_path: Path) -> tuple[list[Frame], Capture]:
    files = TextfileDirectory(tmp_path)
    host = RecordingHost(files.host)
    reader = SourceReader(TextfileSource(files.settings), host, ORIGIN)
    started = files.clock.now()
    frames = []
    for text in STORY:
        files.write({"a.prom": text})
        frame = reader.run().frame
        assert frame
        frames.append(frame)
        files.clock.advance(15)
    about = CaptureMetadata("n", "b", started.wall_ns, started.boot_ns, 60 * 10**9, "test")
    return frames, Capture(about, tuple(host.moments))


def test_a_replay_follows_the_changes_of_a_file(tmp_path: Path) -> None:
    live, capture = recorded_story(tmp_path)
    clock = TextfileDirectory(tmp_path).clock
    started = clock.now().boot_ns
    host = RecordedHost(capture, clock, lambda: clock.now().boot_ns - started)
    settings = TextfileSettings(directory=str(tmp_path))
    reader = SourceReader(TextfileSource(settings), host, ORIGIN)
    for before in live:
        after = reader.run().frame
        assert after
        assert page_of(after) == page_of(before)
        assert [e.facts for e in after.events] == [e.facts for e in before.events]
        clock.advance(15)


def test_a_capture_is_walked_by_moments(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    live, capture = recorded_story(files)
    capture.write(tmp_path / "capture")
    again = read_capture(tmp_path / "capture")
    host = SteppedHost(again.about)
    settings = TextfileSettings(directory=str(files))
    reader = SourceReader(TextfileSource(settings), host, ORIGIN)
    pages = []
    for moment in again.moments:
        host.advance(moment)
        frame = reader.run().frame
        assert frame
        pages.append(own_series(page_of(frame)))
    assert pages == [own_series(page_of(frame)) for frame in live]
