"""Stories of the tokens file: tokens of nodes and persons, mistakes in the file, and who a request is from.

create a b --renew          `railscope collector token --nodes` for these nodes, with options
token --role operator anna  `railscope collector token`, with the paths OUTPUT and FILE
file TEXT                   write the tokens file; \\n is the end of a line
drop b; delete b            remove the entry of a node from the tokens file, or its token
holders                     each token of the output, with its holder as the collector finds it
load TEXT                   number of entries of a tokens file, or the problem
show Bearer a               holder of a request with this header, or the reason why it has none
uris railscope:node/n1      holder of a client certificate with these names
"""

from __future__ import annotations

import re
import shlex
import time
from pathlib import Path

import pytest
from support.certificates import ClientAuthority
from support.command_line import run
from support.stories import Story

from railscope import timestamps
from railscope.settings import SettingsError
from railscope_collector.access.authentication import authenticate
from railscope_collector.access.credentials import CredentialKey, Credentials, digest_token
from railscope_collector.access.tokens_file import load_credentials

NOON_NS = 1_790_000_000_000_000_000
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
DAYS = re.compile(r"\bin(-?\d+)days\b")


class Site:
    """List of nodes, directory and tokens file of an administrator."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.file, self.output = directory / "tokens.toml", directory / "tokens"

    def run(self, command: str) -> list[str]:
        """Play a command."""
        name, _, text = command.partition(" ")
        match name:
            case "create":
                return self._create(text.split())
            case "token":
                return self._command(shlex.split(text))
            case "file":
                self.file.write_text(self._text(text))
            case "drop":
                lines = self.file.read_text().splitlines(keepends=True)
                kept = (line for line in lines if not line.startswith((f'"{text}"', f"{text} ")))
                self.file.write_text("".join(kept))
            case "delete":
                (self.output / f"{text}.token").unlink()
            case "keep":
                self.output.mkdir(exist_ok=True)
                node, token = text.split()
                (self.output / f"{node}.token").write_text(token)
            case "holders":
                return self._holders()
            case "load":
                return [self._load(text)]
            case "show" | "uris":
                return [self._holder(name, text)]
            case _:
                pytest.fail(f"unknown command {name!r}")
        return []

    def _text(self, text: str) -> str:
        def moment(days: re.Match[str]) -> str:
            at_ns = time.time_ns() + int(days[1]) * timestamps.DAY_NS
            return timestamps.format_timestamp(at_ns)

        return DAYS.sub(moment, text).replace("\\n", "\n").replace("\\x1b", "\x1b")

    def _create(self, words: list[str]) -> list[str]:
        options = next((n for n, word in enumerate(words) if word.startswith("--")), len(words))
        nodes = self.directory / "nodes.txt"
        nodes.write_text("".join(f"{self._text(name)}\n" for name in words[:options]))
        places = ["--nodes", str(nodes), "--output", "OUTPUT", "--tokens-file", "FILE"]
        return self._command([*places, *words[options:]])

    def _command(self, words: list[str]) -> list[str]:
        places = {"OUTPUT": str(self.output), "FILE": str(self.file)}
        words = [re.sub(r"^(OUTPUT|FILE)", lambda name: places[name[0]], word) for word in words]
        found = run("collector", "token", *words)
        lines = found.output.replace(str(self.directory), "DIR").splitlines()
        if found.exit_code == 2:  # after its usage
            lines = lines[-1:]
        return [f"exit status {found.exit_code}"] + [TIME.sub("TIME", line) for line in lines]

    def _holders(self) -> list[str]:
        entries = load_credentials(self.file).entries
        found = []
        for path in sorted(self.output.glob("*")):
            digest = digest_token(path.read_text().strip())
            entry = entries.get(CredentialKey("token", digest))
            mode = "" if path.stat().st_mode & 0o777 == 0o600 else ", readable by others"
            found.append(f"{path.name} {entry.credential.label if entry else 'nobody'}{mode}")
        return found

    def _holder(self, name: str, text: str) -> str:
        if name == "uris":
            der = ClientAuthority(self.directory).client("n9", *text.split()).der
            found = authenticate(Credentials(), [], der, NOON_NS - 10**18)
        else:
            shown = [each.strip('"') for each in text.split(", ")]
            found = authenticate(load_credentials(self.file), shown, b"", NOON_NS)
        return found.credential.label if found.credential else found.reason

    def _load(self, text: str) -> str:
        if text:
            self.file.write_text(self._text(text))
        try:
            entries = load_credentials(self.file).entries.values()
        except SettingsError as error:
            return (
                str(error)
                .replace(f"invalid tokens_file {self.file}: ", "")
                .replace(str(self.directory), "DIR")
            )
        levels = "".join(str(entry.credential.max_authority) for entry in entries)
        return f"{len(entries)} entries, authority {levels}"


def test_tokens(story: Story, tmp_path: Path) -> None:
    story.play(Site(tmp_path).run)
