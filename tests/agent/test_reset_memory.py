"""A GPU that was reset is healthy again, also for an agent started after the reset."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs
from support.clock import NS
from support.judging import VerdictSources, old_driver, set_field, verdict_sources

from railscope.reading import Absent
from railscope_agent.health.gpu_lifetime import GpuLifetime, GpuLifetimeFile


def lifetime_of(*energies: int, every_ns: int = 5 * NS) -> GpuLifetime:
    """Return a GPU whose energy counter had these values."""
    lifetime = GpuLifetime()
    for number, energy in enumerate(energies, 1):
        lifetime.observe(number * every_ns, energy, Absent.UNSUPPORTED, 0)
    return lifetime


def test_a_reset_before_the_restart_is_remembered(tmp_path: Path) -> None:
    memory = GpuLifetimeFile(tmp_path / "resets.json", "boot-1")
    memory.save({"GPU-1": lifetime_of(100, 200, 5), "GPU-2": lifetime_of(7)})
    again = GpuLifetimeFile(tmp_path / "resets.json", "boot-1").load()
    assert again["GPU-1"] == lifetime_of(100, 200, 5)
    assert again["GPU-1"].cleared_ns == 10 * NS
    assert again["GPU-2"].cleared_ns == -1


def test_a_reset_while_the_agent_was_away_is_seen_by_the_counter(tmp_path: Path) -> None:
    memory = GpuLifetimeFile(tmp_path / "resets.json", "boot-1")
    memory.save({"GPU-1": lifetime_of(100, 200)})
    lifetime = memory.load()["GPU-1"]
    lifetime.observe(1000 * NS, 3, Absent.UNSUPPORTED, 0)
    assert lifetime.cleared_ns == 10 * NS, "all up to the last earlier poll"


def test_without_a_state_directory_nothing_is_kept_and_none_is_made(tmp_path: Path) -> None:
    with capture_logs() as logs:
        GpuLifetimeFile(tmp_path / "state" / "resets.json", "boot-1").save(
            {"GPU-1": lifetime_of(2, 1)}
        )
    assert (list(tmp_path.iterdir()), logs) == ([], [])


def test_another_boot_is_another_log(tmp_path: Path) -> None:
    GpuLifetimeFile(tmp_path / "resets.json", "boot-1").save({"GPU-1": lifetime_of(2, 1)})
    assert GpuLifetimeFile(tmp_path / "resets.json", "boot-2").load() == {}


def test_nothing_kept_is_nothing_known(tmp_path: Path) -> None:
    assert GpuLifetimeFile(tmp_path / "resets.json", "boot-1").load() == {}


def test_a_file_of_an_earlier_agent_has_no_reset_of_a_switch(tmp_path: Path) -> None:
    path = tmp_path / "resets.json"
    path.write_bytes(b'{"boot_id":"boot-1","gpus":{"GPU-1":{"cleared_ns":7,"resets":1}}}')
    assert GpuLifetimeFile(path, "boot-1").load() == {"GPU-1": GpuLifetime(7, -1, 1)}


@pytest.mark.parametrize("content", [b"", b"{", b'{"boot_id": 1, "gpus": {}}', b"\xff"])
def test_a_damaged_file_is_reported_and_does_no_harm(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "resets.json"
    path.write_bytes(content)
    with capture_logs() as logs:
        assert GpuLifetimeFile(path, "boot-1").load() == {}
    assert [entry["event"] for entry in logs] == ["gpu_resets_read_failed"]


def test_a_failed_write_is_reported_once_and_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / ("r" * 250 + ".json")  # no name is left for a temporary file
    path.write_bytes(b"old")
    memory = GpuLifetimeFile(path, "boot-1")
    with capture_logs() as logs:
        for _ in range(3):
            memory.save({"GPU-1": lifetime_of(9)})
    assert len(logs) == 1
    assert path.read_bytes() == b"old"


FALLEN = "NVRM: Xid (PCI:0000:01:00): 79, pid=41, name=python3, GPU has fallen off the bus."
ENERGY = 83


def test_an_agent_that_is_started_again_does_not_hold_an_old_xid_against_a_gpu(
    tmp_path: Path,
) -> None:
    """For drivers that do not report whether a GPU has recovered."""
    run = verdict_sources()
    old_driver(run)
    run.verdicts.remember(GpuLifetimeFile(tmp_path / "resets.json", "boot-1"))
    run.step()
    run.log(1, FALLEN)
    records = list(run.host.log.waiting)
    run.step()
    assert run.state() == "failed"
    set_field(run, ENERGY, 5)
    run.steps(10)
    assert run.state() == "healthy"
    assert (
        state_after_restart(run, records, GpuLifetimeFile(tmp_path / "resets.json", "boot-1"))
        == "healthy"
    )
    assert (
        state_after_restart(run, records, GpuLifetimeFile(tmp_path / "none.json", "boot-1"))
        == "failed"
    )


def test_a_gpu_that_is_not_met_after_the_restart_is_not_forgotten(tmp_path: Path) -> None:
    memory = GpuLifetimeFile(tmp_path / "resets.json", "boot-1")
    memory.save({"GPU-lost": lifetime_of(100, 5)})
    run = verdict_sources()
    run.verdicts.remember(memory)
    run.step()
    kept = memory.load()
    assert len(kept) > 1
    assert kept["GPU-lost"] == lifetime_of(100, 5)


def state_after_restart(run: VerdictSources, records: list[str], memory: GpuLifetimeFile) -> str:
    """The state of the GPU in an agent that reads the same kernel log from its start."""
    again = VerdictSources(run.host)
    again.host.log.waiting = list(records)
    again.verdicts.remember(memory)
    again.step()
    again.step()
    return again.state()
