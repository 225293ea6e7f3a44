"""The page on the first invoice: its commands are run as they are written, and print what it shows."""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

from support.command_line import run

PAGE = Path(__file__).parents[1] / "docs" / "first-invoice.md"
BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^railscope (.*)\n|^.*<<'END'\n(?s:.*?)^END\n|^.*\n", re.MULTILINE)
VARIABLE = re.compile(
    r"\d{4}-\d\d-\d\d [\d:]+ UTC by \w+"  # of a closing
    r"|\b[0-9a-f]{24,64}\b"  # of an invoice or a file
    r"|[\d,]+ bytes"
)


def outputs(block: str) -> Iterator[str]:
    """Run a block in the current directory, and yield what its commands print."""
    for command in COMMAND.finditer(block):
        if command[1]:
            outcome = run(*shlex.split(command[1]))
            assert outcome.exit_code == 0, outcome.output
            yield outcome.stdout
        elif not command[0].startswith(("mkdir ", "cd ")):
            subprocess.run(["sh", "-c", command[0]], check=True)


def pattern_of(shown: str) -> str:
    """Return the pattern of an output as the page shows it: `...` stands for any lines."""
    lines = (".+".join(map(re.escape, VARIABLE.split(line))) + "\n" for line in shown.splitlines())
    return "".join("(?:.*\n)*?" if line == r"\.\.\." + "\n" else line for line in lines)


def test_the_commands_of_the_page_print_what_it_shows(tmp_path: Path):
    printed, compared = "", 0
    with contextlib.chdir(tmp_path):
        for block in BLOCK.finditer(PAGE.read_text()):
            if block[1] == "sh":
                printed = "".join(outputs(block[2]))
            else:
                assert re.fullmatch(pattern_of(block[2]), printed), f"{block[2]}\n!=\n{printed}"
                compared += 1
    assert {"statement.html", "focus"} <= {path.name for path in tmp_path.iterdir()}
    assert compared == 6
