"""Stories: tests as text. A runner `test_NAME.py` has a fixture `story` and plays the files `NAME.txt` or `NAME/*.txt` beside it.

    define G /sys/fs/cgroup     $G stands for this text in all lines of the file
    # promise                   begins a story
    command arguments           is played; several commands may stand in one line, separated by `; `
      line                      indented: all lines that the commands of the line above print, in their order

An expected line that ends with … states the beginning of a line. `pytest --write-stories`, in one process, writes the printed
lines in place of the expected ones, with the texts of names: review them as a diff.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import pytest

_DEFINITION = re.compile(r"define (\S+) (.*)")
_INDENT, _REST = "  ", "…"


@dataclass
class Step:
    """Commands of one line, the number of that line, and the lines expected below it."""

    number: int
    commands: list[str]
    expected: list[str] = field(default_factory=list)


@dataclass
class Story:
    """A promise and its steps; `line` is the line number of the promise."""

    path: Path
    line: int
    promise: str
    steps: list[Step] = field(default_factory=list)
    is_written_again: bool = False

    def play(self, run: Callable[[str], list[str]]) -> None:
        """Run each command, and compare what it prints with the expected lines below it."""
        for step in self.steps:
            printed = [line for command in step.commands for line in run(command)]
            if self.is_written_again:
                step.expected = [*map(_shortened, printed, [*step.expected, *[""] * len(printed)])]
                continue
            shown = [
                _shortened(line, expected)
                for line, expected in zip_longest(printed, step.expected, fillvalue="")
            ]
            where = f"{self.path.name}, line {step.number}: {'; '.join(step.commands)}"
            assert shown[: len(printed)] == step.expected, where
        if self.is_written_again:
            _write_again(self)


def _shortened(line: str, expected: str) -> str:
    """Return the line, or the expected beginning of it."""
    beginning = expected.removesuffix(_REST)
    is_beginning = beginning != expected and bool(beginning) and line.startswith(beginning)
    return expected if is_beginning else line


def read(path: Path) -> list[Story]:
    """Return the stories of a file."""
    definitions = dict[str, str]()
    stories = list[Story]()
    for number, text in enumerate(path.read_text().splitlines(), 1):
        line = re.sub(r"\$(\w+)", lambda name: definitions.get(name[1], name[0]), text)
        steps = stories[-1].steps if stories else []
        if found := _DEFINITION.fullmatch(line):
            definitions[found[1]] = found[2]
        elif line.startswith("# "):
            stories.append(Story(path, number, line.removeprefix("# ")))
        elif steps and line.startswith(_INDENT):
            steps[-1].expected.append(line.removeprefix(_INDENT))
        elif stories and line and not line.startswith(_INDENT):
            steps.append(Step(number, line.split("; ")))
        elif line:
            pytest.fail(f"{path.name}, line {number}: {line!r}: expected a promise or a command")
    promises = Counter(story.promise for story in stories)
    for story in stories:
        if not story.steps or promises[story.promise] > 1:
            where = f"{path.name}, line {story.line}: {story.promise!r}"
            pytest.fail(f"{where}: expected commands, and another promise in each story of a file")
    return stories


def _write_again(story: Story) -> None:
    """Replace the expected lines of a story; those of the stories above it keep their numbers."""
    lines = story.path.read_text().splitlines()
    for step in reversed(story.steps):
        end = step.number
        while end < len(lines) and lines[end].startswith(_INDENT):
            end += 1
        lines[step.number : end] = [_INDENT + line for line in step.expected]
    story.path.write_text("\n".join(lines) + "\n")


def files_beside(runner: Path) -> list[Path]:
    """Return the files of stories of a runner."""
    name = runner.stem.removeprefix("test_")
    files = sorted((runner.parent / name).glob("*.txt")) or [runner.parent / f"{name}.txt"]
    if not files[0].exists():
        pytest.fail(f"{runner}: no stories: expected {name}.txt or {name}/*.txt beside it")
    return files


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Give a test with the fixture `story` one case per story of its runner; the last story first if they are written again."""
    if "story" not in metafunc.fixturenames:
        return
    found = [
        story for path in files_beside(Path(metafunc.module.__file__ or "")) for story in read(path)
    ]
    if metafunc.config.option.write_stories:
        for story in found:
            story.is_written_again = True
        found.reverse()
    ids = [f"{story.path.stem}: {story.promise}" for story in found]
    metafunc.parametrize("story", found, ids=ids)
