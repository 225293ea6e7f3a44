"""Targets of OTLP: URL, headers, TLS, timeout and compression of each signal, from settings and environment.

Settings of the agent take precedence over the variables OTEL_EXPORTER_OTLP_*, and of these the one of a signal over the
general one (specification of the OTLP exporter).
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from agent.config import OtlpSettings
from railscope import __version__, settings

METRICS, LOGS = "metrics", "logs"
PROTOCOL = "http/protobuf"
PATHS = {METRICS: "/v1/metrics", LOGS: "/v1/logs"}
_VARIABLE = "OTEL_EXPORTER_OTLP"
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OWN_HEADERS = {
    "connection", "content-encoding", "content-length", "content-type", "host", "transfer-encoding", "user-agent",
}  # fmt: skip
_GZIP, _UNCOMPRESSED = "gzip", "none"


@dataclass(frozen=True, slots=True)
class OtlpTarget:
    """Receiver of one signal."""

    signal: str
    url: str
    headers: Mapping[str, str]
    tls: ssl.SSLContext | None
    timeout_seconds: float
    is_compressed: bool

    @property
    def shown_url(self) -> str:
        """URL without its query, which may contain a credential."""
        return urlsplit(self.url)._replace(query="", fragment="").geturl()


def is_enabled(configured: OtlpSettings, environment: Mapping[str, str]) -> bool:
    """True if there is an endpoint for at least one signal."""
    return any(_url(configured, environment, signal)[1] for signal in PATHS)


def otlp_targets(configured: OtlpSettings, environment: Mapping[str, str]) -> dict[str, OtlpTarget]:
    """Return the target of each signal that has one. Raises SettingsError that names setting or variable."""
    targets = {}
    for signal in PATHS:
        origin, url = _url(configured, environment, signal)
        if not url or (signal == LOGS and not configured.events):
            continue
        settings.check_http_url(origin, url)
        _check_protocol(environment, signal)
        targets[signal] = OtlpTarget(
            signal,
            url,
            _headers(configured, environment, signal),
            _tls(configured, environment, signal) if url.startswith("https:") else None,
            _timeout_seconds(configured, environment, signal),
            _is_compressed(configured, environment, signal),
        )
    return targets


def _variable(environment: Mapping[str, str], signal: str, name: str) -> tuple[str, str]:
    """Return name and value of a variable: that of the signal, or else the general one."""
    names = f"{_VARIABLE}_{signal.upper()}_{name}", f"{_VARIABLE}_{name}"
    chosen = next((each for each in names if environment.get(each)), names[-1])
    return chosen, environment.get(chosen, "").strip()


def _url(configured: OtlpSettings, environment: Mapping[str, str], signal: str) -> tuple[str, str]:
    """Return the URL of a signal, empty if it has none, and the setting or variable that it is from."""
    endpoint = {METRICS: configured.metrics_endpoint, LOGS: configured.logs_endpoint}[signal]
    if endpoint:
        return f"otlp.{signal}_endpoint", endpoint
    if configured.endpoint:
        return "otlp.endpoint", configured.endpoint.rstrip("/") + PATHS[signal]
    name, url = _variable(environment, signal, "ENDPOINT")
    if url and name == f"{_VARIABLE}_ENDPOINT":
        url = url.rstrip("/") + PATHS[signal]
    return name, url


def _check_protocol(environment: Mapping[str, str], signal: str) -> None:
    name, protocol = _variable(environment, signal, "PROTOCOL")
    if protocol not in {"", PROTOCOL}:
        message = (
            f"invalid {name} {protocol!r}: expected {PROTOCOL}, the only protocol of the agent; fix: unset it, and use the"
            " port of the receiver for HTTP, by default 4318"
        )
        raise settings.SettingsError(message)


def _headers(
    configured: OtlpSettings, environment: Mapping[str, str], signal: str
) -> dict[str, str]:
    """Return all headers of requests. Messages about invalid ones do not contain values, which may be secrets."""
    origin, text = _variable(environment, signal, "HEADERS")
    if configured.headers_file:
        origin = f"otlp.headers_file {configured.headers_file}"
        text = settings.read_named_file("otlp.headers_file", configured.headers_file)
    headers = {
        "Content-Type": "application/x-protobuf",
        "User-Agent": f"railscope-agent/{__version__}",
    }
    if _is_compressed(configured, environment, signal):
        headers["Content-Encoding"] = _GZIP
    for entry in filter(None, map(str.strip, re.split("[,\n]", text))):
        name, separator, value = map(str.strip, entry.partition("="))
        value = unquote(value)
        is_valid = _HEADER.fullmatch(name) and value.isascii() and value.isprintable()
        if not separator or not is_valid or name.lower() in _OWN_HEADERS:
            message = (
                f"invalid header {name[:100]!r} in {origin}: expected NAME=VALUE with a name other than those that the"
                " agent sets, and a value of printable ASCII characters; fix: percent-encode commas"
                if separator
                else f"invalid header in {origin}: expected NAME=VALUE; fix: percent-encode commas in values"
            )
            raise settings.SettingsError(message)
        headers[name] = value
    return headers


def _tls(configured: OtlpSettings, environment: Mapping[str, str], signal: str) -> ssl.SSLContext:
    files = {}
    for name, setting, file in (
        ("CERTIFICATE", "otlp.ca_file", configured.ca_file),
        ("CLIENT_CERTIFICATE", "otlp.certificate_file", configured.certificate_file),
        ("CLIENT_KEY", "otlp.key_file", configured.key_file),
    ):
        files[name] = (setting, file) if file else _variable(environment, signal, name)
    origin, ca_file = files["CERTIFICATE"]
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        origin, certificate_file = files["CLIENT_CERTIFICATE"]
        key_origin, key_file = files["CLIENT_KEY"]
        if certificate_file:
            context.load_cert_chain(certificate_file, key_file or None)
    except OSError as error:
        shown = (
            ca_file
            if origin == files["CERTIFICATE"][0]
            else f"{certificate_file} or {key_origin} {key_file}"
        )
        message = f"cannot use {origin} {shown}: {error}"
        raise settings.SettingsError(message) from error
    return context


def _timeout_seconds(
    configured: OtlpSettings, environment: Mapping[str, str], signal: str
) -> float:
    """Return the timeout of a request; durations of the specification are in milliseconds."""
    name, text = _variable(environment, signal, "TIMEOUT")
    if configured.timeout_seconds or not text:
        return configured.timeout_seconds or DEFAULT_TIMEOUT_SECONDS
    if not text.isdecimal() or not int(text) or len(text) > MAX_TIMEOUT_DIGITS:
        message = f"invalid {name} {text[:100]!r}: expected milliseconds, at least 1"
        raise settings.SettingsError(message)
    return int(text) / 1000


DEFAULT_TIMEOUT_SECONDS, MAX_TIMEOUT_DIGITS = 10.0, 8


def _is_compressed(configured: OtlpSettings, environment: Mapping[str, str], signal: str) -> bool:
    name, text = _variable(environment, signal, "COMPRESSION")
    chosen = text or _GZIP
    if configured.compression != "default":
        chosen = configured.compression
    if chosen not in {_GZIP, _UNCOMPRESSED}:
        message = f"invalid {name} {chosen[:100]!r}: expected {_GZIP} or {_UNCOMPRESSED}"
        raise settings.SettingsError(message)
    return chosen == _GZIP
