"""Errors of commands: each names what failed, the value, what is expected, and how to fix it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from click.testing import CliRunner

from railscope.audit import signed_note
from railscope.cli import root

FILES = {
    "garbage.sqlite": "no database, but long enough to be read as the head of one " * 50,
    "jobs.txt": "Foo|Bar\n1|2\n",
    "prices.toml": 'version = 1\ncurrency = "EUR"\n',
    "audit/other.txt": "no file of an audit log\n",
}

CASES = [
    ("audit verify audit --key {public}", 2, "no audit log in audit: expected a checkpoint, a journal or tiles; fix: name"),
    ("audit show audit", 1, "no audit log in audit: expected a checkpoint, a journal or tiles; fix: name"),
    ("audit verify audit --key {secret}", 3, "invalid public key: this is a secret key; fix: give the public key"),
    ("bill list --ledger sqlite:///garbage.sqlite", 1, "file is not a database; fix: name the file of a ledger"),
    ("bill import-jobs jobs.txt", 1, "JobID: missing in the header: expected the columns JobIDRaw,User,Account,"),
    ("bill import-jobs --timezone Europa/Berlin jobs.txt", 2, "'Europa/Berlin': expected one of this machine: Europe/Berlin"),
    ("bill prices check prices.toml", 1, "missing published: expected a time with an offset, such as published = 2026-"),
    ("status --collector http://127.0.0.1:1 --token-file missing", 3, "No such file or directory; fix: name the file"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "status", "message"), CASES)
def test_the_error_of_a_command(tmp_path: Path, command: str, status: int, message: str) -> None:
    secret = signed_note.SecretKey.generate("log")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    named = command.format(public=secret.public, secret=secret.secret_text())
    with contextlib.chdir(tmp_path):
        outcome = CliRunner().invoke(root, named.split())
    text = " ".join(outcome.output.split())
    assert message in text
    assert secret.secret_text() not in text
    assert outcome.exit_code == status
