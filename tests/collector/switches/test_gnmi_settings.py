"""Switches that are polled by gNMI: their settings, and errors with the place and what is expected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.certificates import self_signed
from test_switch_settings import table

from railscope import extras
from railscope.settings import SettingsError
from railscope_collector.config import SwitchesSettings
from railscope_collector.switches.switch_polling import SwitchPolling
from railscope_collector.switches.switch_settings import ConfiguredSwitch, GnmiUser, read_switches

USER = 'user = "watcher"\npassword = "secret-text"\n'


def write(directory: Path, text: str, credential: str = USER) -> SwitchesSettings:
    (directory / "user.toml").write_text(credential)
    self_signed(directory)
    file = directory / "switches.toml"
    text = text.replace("CREDENTIAL", str(directory / "user.toml"))
    file.write_text(
        text.replace("CA_FILE", str(directory / "certificate.pem")).replace("True", "true")
    )
    return SwitchesSettings(file=str(file))


def read(directory: Path, text: str, credential: str = USER) -> tuple[ConfiguredSwitch, ...]:
    return read_switches(write(directory, text, credential))


def test_user_authority_and_port_of_gnmi(tmp_path: Path):
    (switch,) = read(tmp_path, table(protocol="gnmi", ca_file="CA_FILE", server_name="leaf-07"))
    assert (switch.port, switch.user) == (50051, GnmiUser("watcher", "secret-text"))
    assert switch.ca_file == str(tmp_path / "certificate.pem")
    assert switch.dialect == "auto"
    assert "secret-text" not in repr(switch)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (table(ca_file="CA_FILE"), "ca_file: expected with protocol = 'gnmi' only"),
        (table(protocol="gnmi", tables="sonic"), "tables: expected with protocol = 'snmp' only"),
        (table(protocol="gnmi", key_file="CA_FILE"), "key_file without certificate_file"),
        (table(protocol="gnmi", plaintext=True, ca_file="CA_FILE"), "ca_file with plaintext"),
        (table(protocol="gnmi", plaintext=True), "plaintext with a user: expected TLS"),
        (table(protocol="gnmi", dialect="comware"), "dialect: 'comware': invalid enum value"),
        (table(dialect="openconfig"), "dialect: expected with protocol = 'gnmi' only"),
        (table(protocol="gnmi", ca_file="/does/not/exist"), "cannot read .*ca_file"),
        (table(protocol="gnmi", ca_file="CREDENTIAL"), "expected PEM files"),
        (table(protocol="gnmi", certificate_file="CA_FILE"), "expected PEM files"),
        (
            table(protocol="gnmi", credential_file="/does/not/exist"),
            "cannot read .*credential_file",
        ),
    ],
)
def test_errors_name_the_place_and_the_expectation(tmp_path: Path, text: str, problem: str):
    with pytest.raises(SettingsError, match=problem):
        read(tmp_path, text)


@pytest.mark.parametrize(
    "credential",
    ["", 'user = "watcher"', 'community = "secret-text"', USER + "more = 1", "secret-text"],
)
def test_errors_of_credentials_quote_no_secret(tmp_path: Path, credential: str):
    with pytest.raises(SettingsError, match="expected TOML with the keys user, password") as failed:
        read(tmp_path, table(protocol="gnmi"), credential)
    assert "secret-text" not in str(failed.value)


@pytest.mark.parametrize(("address", "warnings"), [("192.0.2.7", 1), ("127.0.0.1", 0)])
def test_plaintext_beyond_loopback_is_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], address: str, warnings: int
):
    text = table(protocol="gnmi", address=address, plaintext=True, credential_file="")
    SwitchPolling.from_settings(write(tmp_path, text), lambda: 0, lambda: True)
    assert capsys.readouterr().out.count("switch_connection_unencrypted") == warnings


def test_only_gnmi_needs_grpc(tmp_path: Path):
    settings = write(tmp_path, table(protocol="gnmi"))
    script = (
        "import sys\n"
        "sys.modules['grpc'] = None  # as without the extra\n"
        "from railscope_collector.config import SwitchesSettings\n"
        "from railscope_collector.switches.switch_polling import SwitchPolling\n"
        f"SwitchPolling.from_settings(SwitchesSettings(file={settings.file!r}), lambda: 0, lambda: True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert f"fix: {extras.install_command('switches')}" in done.stderr
