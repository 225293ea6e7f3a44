"""Administrators' files with invalid text: rejected, and the last valid version stays in force."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from running_collector import run_collector, settings_in
from support.waiting import wait_until

from railscope.settings import SettingsError
from railscope_collector.access import tokens_file
from railscope_collector.administrator_files import AdministratorFiles
from railscope_collector.config import CollectorSettings

START = "2026-01-01T00:00:00Z"
NINES, DEEP = "9" * 5000, "[" * 5000
DOTS = ".".join("a" * 5000)


@dataclass(frozen=True)
class FileKind:
    """A file of administrators: its setting, a good content, and hostile texts that follow it."""

    setting: str
    good: str
    hostile: tuple[str, ...]


TOMLS = (
    f"x = {NINES}", "x = 0x" + "f" * 5000, f"x = {DEEP}", "x = " + "{ y = " * 5000, f"{DOTS} = 1",
    'x = "\\u0000"', "x = 2026-01-01T00:00:00+99:00", "x = 1e999999999", "\0",
)  # fmt: skip
KINDS = [
    FileKind("quotas_file", "tenant,gpu_hours,period,gpus,from,to\n", tuple(
        f"red,{hours},month,{gpus},{start},"
        for hours, gpus, start in (
            ("1e999999999", "", START), ("", "1e999999999", START), ("1e-999999999", "", START),
            (NINES, "", START), ("1/0", "", START), ("nan", "", START), ("-1", "", START),
            ("\0", "", START), ("1", "1", "9999-12-31T23:59:59-14:00x"), ("1", "1", NINES),
        )
    )),
    FileKind("inventory_file", "node,gpus,rdma_ports,from,to\n", (
        f"n1,{NINES},8,{START},", f"n1,8,1e999999999,{START},", f"n1,\0,8,{START},",
        f"n1,²,8,{START},", f"n1,8,8,{NINES},",
    )),
    FileKind("claims_file", "tenant,holds,from,to\n", (
        f"red,GPU-1,{NINES},", "red,GPU-1,9999-12-31T23:59:59-14:00,2026-01-01T00:00:00Z",
        f"red,GPU-\0,{START},", f'red,"GPU-1,{START},',
    )),
    FileKind("tenants_file", "tenant,source,owner,from,to\n", (
        f"red,slurm,o,{NINES},", f"red,slurm,\0,{START},",
    )),
    FileKind("retired_file", "gpu,from,to,reason\n", (f"GPU-1,{NINES},,x", f"GPU-1,{START},,\0")),
    FileKind("calendar_file", "", (
        *TOMLS, f"[[outage]]\nholds = '*'\nfrom = 0x{'f' * 5000}",
        f"[[outage]]\nholds = '*'\nfrom = '{NINES}'",
    )),
    FileKind("tokens_file", "", TOMLS),
]  # fmt: skip


CASES = [(kind, text.encode()) for kind in KINDS for text in kind.hostile]
CASES += [(kind, b"\xff\xfe") for kind in KINDS]


def the_settings(directory: Path, kind: FileKind) -> tuple[CollectorSettings, Path]:
    """Settings with one such file, which is good."""
    settings = settings_in(directory)
    if kind.setting == "tokens_file":
        return settings, directory / "tokens.toml"
    file = directory / "given"
    file.write_text(kind.good)
    return settings_in(directory, **{kind.setting: str(file)}), file


@pytest.mark.parametrize(("kind", "more"), CASES, ids=range(len(CASES)))
def test_a_hostile_file_is_rejected_with_a_reason(
    kind: FileKind, more: bytes, tmp_path: Path
) -> None:
    settings, file = the_settings(tmp_path, kind)
    file.write_bytes(file.read_bytes() + more + b"\n")
    if kind.setting == "tokens_file":
        with pytest.raises(SettingsError) as raised:
            tokens_file.load_credentials(file)
        problem = str(raised.value)
    else:
        files = AdministratorFiles.from_settings(settings)
        files.refresh()
        (problem,) = [file.problem for file in files.all_files if not file.is_valid]
    assert problem
    assert len(problem) < 600


@pytest.mark.parametrize("kind", [KINDS[2], KINDS[-1]], ids=lambda kind: kind.setting)
async def test_a_hostile_edit_leaves_the_collector_with_the_last_good_file(
    kind: FileKind, tmp_path: Path
) -> None:
    settings, file = the_settings(tmp_path, kind)
    good = file.read_bytes()
    async with run_collector(settings) as running:
        watched = [f for f in running.collector.files.all_files if f.path == file]
        valid = (
            (lambda: watched[0].is_valid)
            if watched
            else (lambda: running.collector.tokens.is_valid)
        )
        for more in kind.hostile[:3:2]:
            file.write_bytes(good + more.encode() + b"\n")
            await wait_until(lambda: not valid(), "the file is rejected")
            assert (await running.get("/-/healthy"))[0] == 200
            file.write_bytes(good)
            await wait_until(valid, "the file is accepted")
