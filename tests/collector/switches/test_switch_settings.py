"""Errors in the switches file and in credential files, each with the place and what is expected."""

from __future__ import annotations

from pathlib import Path

import pytest

from railscope.settings import SettingsError
from railscope_collector.config import SwitchesSettings
from railscope_collector.switches.switch_settings import (
    ConfiguredSwitch,
    SnmpCredential,
    read_switches,
)

COMMUNITY = 'community = "secret-text"'
V3 = 'user = "watcher"\nauthentication = "sha256"\nauthentication_password = "password-1"'


def read(directory: Path, text: str, credential: str = COMMUNITY) -> tuple[ConfiguredSwitch, ...]:
    (directory / "snmp.toml").write_text(credential)
    file = directory / "switches.toml"
    file.write_text(text.replace("CREDENTIAL", str(directory / "snmp.toml")))
    return read_switches(SwitchesSettings(file=str(file), period_seconds=20))


def table(name: str = "leaf-07", **more: object) -> str:
    settings = {"address": "192.0.2.7", "credential_file": "CREDENTIAL"} | more
    return f'["{name}"]\n' + "".join(f"{key} = {value!r}\n" for key, value in settings.items())


def test_no_file_means_no_switches():
    assert read_switches(SwitchesSettings()) == ()


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("192.0.2.7", "192.0.2.7", 161),
        ("leaf-07.example:1161", "leaf-07.example", 1161),
        ("[2001:db8::7]", "2001:db8::7", 161),
        ("[2001:db8::7]:1161", "2001:db8::7", 1161),
    ],
)
def test_addresses(tmp_path, address, host, port):
    (switch,) = read(tmp_path, table(address=address, tables="onyx"))
    assert (switch.host, switch.port, switch.tables) == (host, port, "onyx")
    assert switch.period_seconds == 20
    assert "secret-text" not in repr(switch)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[leaf", "invalid TOML"),
        ("leaf = 1", r"\[leaf\]"),
        ('[leaf-07]\naddress = "192.0.2.7"', "credential_file"),
        (table(adress="1"), "adress"),
        (table(address=""), "expected HOST or HOST:PORT"),
        (table(address="192.0.2.7:0"), "expected HOST or HOST:PORT"),
        (table(address="192.0.2.7:99999"), "expected HOST or HOST:PORT"),
        (table(address="a b"), "expected HOST or HOST:PORT"),
        (table(protocol="telnet"), "protocol"),
        (table(tables="other"), "tables"),
        (table(period_seconds=1), "period_seconds"),
        (table("leaf/07"), "expected a name"),
        (table("a" * 64), "expected a name"),
        (table() + table("leaf-08"), r"also that of \[leaf-07\]"),
        (
            "".join(table(f"leaf-{n}", address=f"192.0.2.7:{n}") for n in range(1, 258)),
            "at most 256",
        ),
        (table(credential_file="/does/not/exist"), "cannot read .*credential_file"),
    ],
)
def test_errors_name_the_place_and_the_expectation(tmp_path, text, problem):
    with pytest.raises(SettingsError, match=problem):
        read(tmp_path, text)


@pytest.mark.parametrize(
    ("credential", "problem"),
    [
        ("", "expected community"),
        (COMMUNITY + '\nuser = "a"', "expected community"),
        ('password = "secret-text"', "expected TOML with the keys"),
        ("secret-text", "expected TOML with the keys"),
        (V3.replace("sha256", "sha3"), "expected TOML with the keys"),
        (V3.replace("password-1", "short"), "at least 8 characters"),
        (V3.replace('authentication = "sha256"\n', ""), "without authentication"),
        ('user = "a"\nprivacy = "aes128"\nprivacy_password = "password-2"', "privacy without"),
        (COMMUNITY + '\nprivacy = "aes128"\nprivacy_password = "password-2"', "expected user"),
    ],
)
def test_errors_of_credentials_quote_no_secret(tmp_path, credential, problem):
    with pytest.raises(SettingsError, match=problem) as failed:
        read(tmp_path, table(), credential)
    assert "secret-text" not in str(failed.value)
    assert "password-" not in str(failed.value)


def test_credential_of_version_3(tmp_path):
    credential = V3 + '\nprivacy = "aes128"\nprivacy_password = "password-2"'
    (switch,) = read(tmp_path, table(), credential)
    assert switch.credential == SnmpCredential(
        user="watcher",
        authentication="sha256",
        authentication_password="password-1",  # noqa: S106 - a test's
        privacy="aes128",
        privacy_password="password-2",  # noqa: S106
    )
