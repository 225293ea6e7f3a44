"""Vendored files are the ones of the stated packages, with their licences, and belong to the installed package."""

from __future__ import annotations

import re
from hashlib import sha256
from pathlib import Path

import railscope_collector.console

ROOT = Path(__file__).parents[3]
PACKAGE = Path(railscope_collector.console.__file__).parent
VENDORED = PACKAGE / "static" / "vendor"
HASHES = {
    name: digest
    for digest, _, name in (
        line.partition("  ") for line in (VENDORED / "SHA256SUMS").read_text().splitlines()
    )
}


def test_the_files_have_the_listed_hashes() -> None:
    found = {path.name: sha256(path.read_bytes()).hexdigest() for path in VENDORED.iterdir()}
    del found["SHA256SUMS"]
    assert found == HASHES


def test_each_library_has_its_licence_and_is_named_in_the_notice() -> None:
    notice = (ROOT / "NOTICE").read_text()
    for name in {name.partition(".")[0] for name in HASHES}:
        assert "Permission is hereby granted" in (VENDORED / f"{name}.LICENSE").read_text()
        assert f"{name}.LICENSE" in notice
    for name in HASHES:
        assert name in notice


def test_the_notice_and_the_makefile_state_the_version_of_the_file() -> None:
    (version,) = re.findall(
        r"uPlot \(v([0-9.]+)\)", (VENDORED / "uPlot.iife.min.js").read_text()[:200]
    )
    assert f"uPlot {version} " in (ROOT / "NOTICE").read_text()
    assert f"uplot@{version}\n" in (ROOT / "Makefile").read_text()
