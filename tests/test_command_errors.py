"""Wrong commands and settings: a story states the exit status and all lines but those without a problem.

file NAME TEXT         writes a file; \\n in the text begins a line
program NAME TEXT      writes a program for the commands that start one
[NAME=VALUE] railscope ARGUMENTS
has TEXT               lines of the last output that contain it, also those without a problem
list                   prints the names of all files
"""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

from support.command_line import run
from support.stories import Story

from railscope.audit.signed_note import SecretKey

_OMITTED = ("Usage: ", "Try '", "Railscope collector ", "ok ")


class CommandLine:
    """A directory in which commands are run; {directory} stands for it, {public} and {secret} for the key of an audit log."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._lines = directory, list[str]()
        key = SecretKey.generate("log")
        self._names = {
            str(directory): "{directory}",
            key.secret_text(): "{secret}",
            str(key.public): "{public}",
        }

    def run(self, command: str) -> list[str]:
        """Run a command of a story."""
        for text, shown in self._names.items():
            command = command.replace(shown, text)
        word, _, rest = command.partition(" ")
        if word == "list":
            paths = (path for path in self._directory.rglob("*") if path.is_file())
            return [" ".join(sorted(str(path.relative_to(self._directory)) for path in paths))]
        if word == "has":
            return [line for line in self._lines if rest in line]
        if word in {"file", "program"}:
            name, _, text = rest.partition(" ")
            path = self._directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("\\n", "\n") + "\n")
            path.chmod(0o755 if word == "program" else 0o644)
            return []
        return self._railscope(shlex.split(command))

    def _railscope(self, words: list[str]) -> list[str]:
        at = words.index("railscope")
        variables = dict(word.split("=", 1) for word in words[:at])
        with contextlib.chdir(self._directory):
            outcome = run(*words[at + 1 :], **variables)
        output = outcome.stdout + outcome.stderr
        for text, shown in self._names.items():
            output = output.replace(text, shown)
        self._lines = [re.sub(r"\s+", " ", line).strip() for line in output.splitlines()]
        shown = [line for line in self._lines if line and not line.startswith(_OMITTED)]
        return [f"exit {outcome.exit_code}", *shown]


def test_the_errors_of_commands(story: Story, tmp_path: Path) -> None:
    story.play(CommandLine(tmp_path).run)
