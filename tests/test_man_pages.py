"""Man pages: complete, and without warnings of the real tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import click
import man_pages
import pytest


def plain(text: str) -> str:
    """Return a page without its escapes."""
    for escape, letter in {
        r"\fB": "",
        r"\fR": "",
        r"\(aq": "'",
        r"\-": "-",
        r"\:": "",
        r"\e": "\\",
    }.items():
        text = text.replace(escape, letter)
    return text


@cache
def pages() -> dict[str, str]:
    """Return each page without its escapes."""
    return {name: plain(text) for name, text in man_pages.pages().items()}


def test_every_command_and_each_of_its_options_has_an_entry():
    commands = man_pages.commands()
    assert {f"{name.replace(' ', '-')}.1" for name in commands} == {
        name for name in pages() if name.endswith(".1")
    }
    for name, command in commands.items():
        page = pages()[f"{name.replace(' ', '-')}.1"]
        assert f"\n.SH SYNOPSIS\n{name}" in page
        assert "\n.TP\n-h, --help\n" in page
        for option in command.params:
            if isinstance(option, click.Option):
                assert f"\n.TP\n{'/'.join([*option.opts, *option.secondary_opts])}" in page
            else:
                assert str(option.human_readable_name) in page
        if isinstance(command, click.Group):
            assert all(
                f"\n.TP\n{one}\n" in page for one in commands if one.rpartition(" ")[0] == name
            )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("tool", "package", "arguments"),
    [
        ("man", "man-db", ["--warnings", "--local-file"]),
        ("mandoc", "mandoc", ["-T", "lint", "-W", "warning"]),
    ],
)
def test_no_page_has_a_warning(tmp_path: Path, tool: str, package: str, arguments: list[str]):
    if shutil.which(tool) is None:
        pytest.skip(f"{tool} is missing: install the Debian package {package}")
    for name, text in man_pages.pages().items():
        (tmp_path / name).write_text(text)
    files = sorted(map(str, tmp_path.iterdir()))
    assert len(files) > 70
    done = subprocess.run(
        [tool, *arguments, *files],
        env=os.environ | {"LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANPAGER": "cat"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert ("railscope collector token" in done.stdout) if tool == "man" else (done.stdout == "")
