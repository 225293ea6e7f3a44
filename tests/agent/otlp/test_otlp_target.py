"""Targets of OTLP from settings of the agent and from the variables of the specification."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest
from support.certificates import self_signed

from railscope import settings
from railscope.settings import SettingsError
from railscope_agent.config import PREFIX, AgentSettings, OtlpSettings
from railscope_agent.otlp.otlp_target import GRPC, HTTP, LOGS, METRICS, is_enabled, otlp_targets

BASE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://env:4318/"}


def urls(configured: OtlpSettings, environment: Mapping[str, str]) -> dict[str, str]:
    """URL of each signal."""
    found = {signal: target.url for signal, target in otlp_targets(configured, environment).items()}
    assert is_enabled(configured, environment) == bool(found)
    return found


def test_without_an_endpoint_nothing_is_exported() -> None:
    assert urls(OtlpSettings(), {"OTEL_EXPORTER_OTLP_HEADERS": "a=b"}) == {}


def test_a_base_url_gets_the_path_of_each_signal_and_others_are_used_as_they_are() -> None:
    both = {METRICS: "http://env:4318/v1/metrics", LOGS: "http://env:4318/v1/logs"}
    assert urls(OtlpSettings(), BASE) == both
    one = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "https://m/"}
    assert urls(OtlpSettings(), one) == {METRICS: "https://m/"}
    assert urls(OtlpSettings(), BASE | one) == both | {METRICS: "https://m/"}
    logs = {"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://l/x?y=z"}
    assert urls(OtlpSettings(), logs) == {LOGS: "http://l/x?y=z"}


@pytest.mark.parametrize("scheme", ["https", "HTTPS"])
def test_a_url_of_https_has_tls_in_any_case(scheme: str) -> None:
    targets = otlp_targets(OtlpSettings(endpoint=f"{scheme}://h:4318"), {})
    assert all(target.tls_files for target in targets.values())


@pytest.mark.parametrize(
    ("chosen", "variable", "protocol"),
    [
        ("default", "", HTTP),
        ("default", "grpc", GRPC),
        ("http/protobuf", "grpc", HTTP),
        ("grpc", "http/json", GRPC),
    ],
)
def test_the_protocol_is_that_of_the_settings_or_of_the_environment(
    chosen: Literal["default", "http/protobuf", "grpc"], variable: str, protocol: str
) -> None:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4317/"}
    environment["OTEL_EXPORTER_OTLP_PROTOCOL"] = variable
    target = otlp_targets(OtlpSettings(protocol=chosen), environment)[LOGS]
    url = "http://h:4317/v1/logs" if protocol == HTTP else "http://h:4317/"
    assert (target.protocol, target.url) == (protocol, url)
    assert target.has_compressed_bodies == (protocol == HTTP)


def test_settings_of_the_agent_take_precedence() -> None:
    environment = BASE | {
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://env/m",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "2000",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
        "OTEL_EXPORTER_OTLP_HEADERS": "a=env",
    }
    own = OtlpSettings(endpoint="http://own", timeout_seconds=3, compression="gzip")
    assert urls(own, environment) == {
        METRICS: "http://own/v1/metrics",
        LOGS: "http://own/v1/logs",
    }
    target = otlp_targets(own, environment)[METRICS]
    assert (target.timeout_seconds, target.is_compressed) == (3, True)
    from_environment = otlp_targets(OtlpSettings(), environment)[METRICS]
    assert from_environment.timeout_seconds == 2
    assert not from_environment.is_compressed
    assert urls(OtlpSettings(endpoint="http://own", metrics_endpoint="http://m"), {}) == {
        METRICS: "http://m",
        LOGS: "http://own/v1/logs",
    }


def test_the_defaults_are_those_of_the_specification_with_compression() -> None:
    target = otlp_targets(OtlpSettings(endpoint="http://h"), {})[METRICS]
    assert (target.timeout_seconds, target.is_compressed, target.tls_files) == (10, True, None)
    assert (target.protocol, target.headers) == (HTTP, {})
    assert otlp_targets(OtlpSettings(endpoint="http://h", events=False), {}).keys() == {METRICS}


def test_the_variable_of_the_agent_is_that_of_its_setting() -> None:
    loaded = settings.load(
        AgentSettings,
        file=None,
        environment={"RAILSCOPE_AGENT_OTLP__ENDPOINT": "http://h:4318"},
        prefix=PREFIX,
    )
    assert urls(loaded.otlp, {})[METRICS] == "http://h:4318/v1/metrics"


def test_headers_are_pairs_with_encoded_values(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("api-key = a%2Cb=c ,\nx-scope=t\n")
    environment = BASE | {
        "OTEL_EXPORTER_OTLP_HEADERS": "one=1",
        "OTEL_EXPORTER_OTLP_LOGS_HEADERS": "two=2",
    }
    own = otlp_targets(OtlpSettings(headers_file=str(file)), environment)[METRICS].headers
    assert (own["api-key"], own["x-scope"], "one" in own) == ("a,b=c", "t", False)
    found = otlp_targets(OtlpSettings(), environment)
    assert found[METRICS].headers["one"] == "1"
    assert found[LOGS].headers["two"] == "2"
    assert "one" not in found[LOGS].headers


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4317"}, "invalid OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://me:hunter2@h"}, "without user and password"),
        (
            {
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://h/v1/metrics",
            },
            "expected a URL without a path for gRPC",
        ),
        (
            {"OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "http/json"},
            "invalid OTEL_EXPORTER_OTLP_LOGS_PROTOCOL",
        ),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "hunter2"}, "expected NAME=VALUE"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "a=hunter2%0A"}, "invalid header 'a'"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "Host=hunter2"}, "invalid header 'Host'"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "grpc-timeout=hunter2"}, "invalid header 'grpc-timeout'"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "key-bin=hunter2"}, "invalid header 'key-bin'"),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "10s"}, "expected milliseconds"),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}, "expected gzip or none"),
    ],
)
def test_an_invalid_variable_is_an_error_that_names_it_and_no_secret(
    environment: Mapping[str, str], problem: str
) -> None:
    with pytest.raises(SettingsError, match=problem) as raised:
        otlp_targets(OtlpSettings(), BASE | environment)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("variable", "setting"),
    [
        ("CERTIFICATE", "ca_file"),
        ("CLIENT_CERTIFICATE", "certificate_file"),
        ("CLIENT_KEY", "key_file"),
    ],
)
def test_files_of_tls_are_those_of_settings_or_variables(
    variable: str, setting: str, tmp_path: Path
) -> None:
    certificate, key = map(str, self_signed(tmp_path))
    https = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://h"}
    good = {
        "OTEL_EXPORTER_OTLP_CERTIFICATE": certificate,
        "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE": certificate,
        "OTEL_EXPORTER_OTLP_CLIENT_KEY": key,
    }
    assert otlp_targets(OtlpSettings(), https | good)[METRICS].tls_files
    name = f"OTEL_EXPORTER_OTLP_{variable}"
    with pytest.raises(SettingsError, match=f"{name} /absent"):
        otlp_targets(OtlpSettings(), https | good | {name: "/absent"})
    with pytest.raises(SettingsError, match=f"otlp.{setting} /absent"):
        otlp_targets(OtlpSettings(**{setting: "/absent"}), https | good)  # type: ignore[arg-type]
