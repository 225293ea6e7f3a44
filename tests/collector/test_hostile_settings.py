"""Settings and dates at the limits: rejected with key, value and expectation, by `check` and by `run`."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from running_collector import settings_in

from railscope.cli import root
from railscope.settings import SettingsError
from railscope_collector.billing import price_book_file
from railscope_collector.billing.price_book import PriceBookError

BOOK = """version = 1
published = {published}
currency = "EUR"
[[price]]
sku = "h100"
tariff = "allocated"
nano_per_gpu_hour = 1
version = 1
from = {start}
to = {end}
"""
GOOD = {
    "published": "2026-01-01T00:00:00Z",
    "start": "2026-01-01T00:00:00Z",
    "end": "9999-12-31T00:00:00Z",
}
EDGES = ("9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00")
WRONG = [
    ("ledger", 'url = "postgresql://u@127.0.0.1:xyz/d"', "ledger.url"),
    ("ledger", 'url = "postgresql://u@127.0.0.1:99999/d"', "port from 1 to 65535"),
    ("ledger", 'url = "sqlite://"', "in memory"),
    ("ledger", 'url = "sqlite:///:memory:"', "in memory"),
    (
        "limits",
        "frames_per_batch = 99999999999999999999",
        "limits.frames_per_batch: number of 67 bits",
    ),
    (
        "limits",
        "frames_per_batch = 9223372036854775807",
        "[limits]: 9223372036854775807: expected an integer",
    ),
    ("", f'listen = "{"a" * 100}:0"', "invalid listen address"),
    ("", 'listen = "a..b:0"', "invalid listen address"),
    ("", 'listen = "a b:0"', "invalid listen address"),
    ("", 'listen = "a\\u0000b:0"', "listen: 'a\\x00b:0': expected a string without NUL"),
    ("", 'tokens_file = "/tmp/\\u0000"', "tokens_file: "),
    ("", 'state_directory = "/tmp/\\u0000x"', "state_directory: "),
    ("billing", 'seller_file = "/absent.toml"', "cannot read seller_file /absent.toml: "),
]


@pytest.mark.parametrize("command", ["check", pytest.param("run", marks=pytest.mark.thorough)])
@pytest.mark.parametrize(("section", "line", "reason"), WRONG, ids=range(len(WRONG)))
def test_a_setting_that_cannot_work_is_rejected(
    command: str, section: str, line: str, reason: str, tmp_path: Path
) -> None:
    usual = settings_in(tmp_path)
    given = {"state_directory": usual.state_directory, "tokens_file": usual.tokens_file}
    lines = [f'{key} = "{value}"' for key, value in given.items() if not line.startswith(key)]
    if not line.startswith("listen"):
        lines.append('listen = "127.0.0.1:0"')
    lines += [f"[{section}]", line] if section else [line]
    file = tmp_path / "collector.toml"
    file.write_text("\n".join(lines))
    found = CliRunner().invoke(root, ["collector", command, "--config", str(file)])
    assert found.exit_code == 1
    assert isinstance(found.exception, SettingsError | SystemExit), repr(found.exception)
    assert reason in f"{found.output} {found.exception}"


@pytest.mark.parametrize(("name", "reason"), [("none/x", "does not exist"), ("", "is a directory")])
def test_check_reports_a_ledger_that_cannot_be_made(name: str, reason: str, tmp_path: Path) -> None:
    usual = settings_in(tmp_path)
    file = tmp_path / "collector.toml"
    file.write_text(
        f'listen = "127.0.0.1:0"\ntokens_file = "{usual.tokens_file}"\n'
        f'state_directory = "{usual.state_directory}"\n[ledger]\nurl = "sqlite:///{tmp_path / name}"\n'
    )
    found = CliRunner().invoke(root, ["collector", "check", "--config", str(file)])
    assert found.exit_code == 1
    assert any("BROKEN  ledger:" in line and reason in line for line in found.output.splitlines())


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("key", ["published", "start", "end"])
def test_a_date_that_utc_does_not_have_is_rejected(edge: str, key: str) -> None:
    price_book_file.parse_price_book(BOOK.format(**GOOD), "prices.toml")
    with pytest.raises(PriceBookError, match=r"prices\.toml.*expected a time of the years 1 to"):
        price_book_file.parse_price_book(BOOK.format(**GOOD | {key: edge}), "prices.toml")
