"""Targets of OTLP: URL, headers, TLS, timeout and compression of each signal, from settings and environment.

Settings of the agent take precedence over the variables OTEL_EXPORTER_OTLP_*, and of these the one of a signal over the
general one (specification of the OTLP exporter).
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from railscope import settings
from railscope_agent.config import OtlpSettings

METRICS, LOGS = "metrics", "logs"
HTTP, GRPC = "http/protobuf", "grpc"
PATHS = {METRICS: "/v1/metrics", LOGS: "/v1/logs"}
_VARIABLE = "OTEL_EXPORTER_OTLP"
_BASE_URLS = {"otlp.endpoint", f"{_VARIABLE}_ENDPOINT"}
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OWN_HEADERS = {
    "connection", "content-encoding", "content-length", "content-type", "host", "te", "transfer-encoding", "user-agent",
}  # fmt: skip
_GZIP, _UNCOMPRESSED = "gzip", "none"


class TlsFiles(NamedTuple):
    """Files (PEM) of an encrypted connection; an empty name: the CA certificates of the system, and no certificate."""

    ca_file: str
    certificate_file: str
    key_file: str


@dataclass(frozen=True, slots=True)
class OtlpTarget:
    """Receiver of one signal; `headers` are those of the site, which are metadata in gRPC."""

    signal: str
    protocol: str
    url: str
    headers: Mapping[str, str]
    tls_files: TlsFiles | None
    timeout_seconds: float
    is_compressed: bool

    @property
    def has_compressed_bodies(self) -> bool:
        """True if the caller compresses; gRPC does so itself."""
        return self.is_compressed and self.protocol == HTTP

    @property
    def shown_url(self) -> str:
        """URL for logs and messages."""
        return settings.shown_url(self.url)


def is_configured(configured: OtlpSettings) -> bool:
    """True if the settings, and not only the environment, have an endpoint."""
    return bool(configured.endpoint or configured.metrics_endpoint or configured.logs_endpoint)


def is_enabled(configured: OtlpSettings, environment: Mapping[str, str]) -> bool:
    """True if there is an endpoint for at least one signal."""
    return any(_url(configured, environment, signal)[1] for signal in PATHS)


def otlp_targets(configured: OtlpSettings, environment: Mapping[str, str]) -> dict[str, OtlpTarget]:
    """Return the target of each signal that has one. Raises SettingsError that names setting or variable."""
    targets = {}
    for signal, path in PATHS.items():
        origin, url = _url(configured, environment, signal)
        if not url or (signal == LOGS and not configured.events):
            continue
        settings.check_http_url(origin, url)
        protocol = _protocol(configured, environment, signal)
        if protocol == GRPC and urlsplit(url).path.strip("/"):
            message = f"invalid {origin} {url!r}: expected a URL without a path for gRPC, such as http://HOST:4317"
            raise settings.SettingsError(message)
        # The specification adds the path of a signal to the general URL only, and uses the URL of a signal as
        # it is.
        if protocol == HTTP and origin in _BASE_URLS:
            url = url.rstrip("/") + path
        targets[signal] = OtlpTarget(
            signal,
            protocol,
            url,
            _headers(configured, environment, signal),
            _tls_files(configured, environment, signal)
            if urlsplit(url).scheme == "https"
            else None,
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
    """Return the setting or variable with the URL of a signal or of all, and the URL, empty if there is none."""
    endpoint = {METRICS: configured.metrics_endpoint, LOGS: configured.logs_endpoint}[signal]
    if endpoint:
        return f"otlp.{signal}_endpoint", endpoint
    if configured.endpoint:
        return "otlp.endpoint", configured.endpoint
    return _variable(environment, signal, "ENDPOINT")


def _protocol(configured: OtlpSettings, environment: Mapping[str, str], signal: str) -> str:
    if configured.protocol != "default":
        return configured.protocol
    name, protocol = _variable(environment, signal, "PROTOCOL")
    if protocol not in {"", HTTP, GRPC}:
        message = (
            f"invalid {name} {protocol[:100]!r}: expected {HTTP} or {GRPC}; fix: set otlp.protocol, and use the port of the"
            " receiver for it, by default 4318 for HTTP and 4317 for gRPC"
        )
        raise settings.SettingsError(message)
    return protocol or HTTP


def _headers(
    configured: OtlpSettings, environment: Mapping[str, str], signal: str
) -> dict[str, str]:
    """Return the headers of the site. Messages about invalid ones do not contain values, which may be secrets."""
    origin, text = _variable(environment, signal, "HEADERS")
    if configured.headers_file:
        origin = f"otlp.headers_file {configured.headers_file}"
        text = settings.read_named_file("otlp.headers_file", configured.headers_file)
    headers = {}
    for entry in filter(None, map(str.strip, re.split("[,\n]", text))):
        name, separator, value = map(str.strip, entry.partition("="))
        value = unquote(value)
        is_valid = _HEADER.fullmatch(name) and value.isascii() and value.isprintable()
        is_own = (
            name.lower() in _OWN_HEADERS
            or name.lower().startswith("grpc-")
            or name.lower().endswith("-bin")
        )
        if not separator or not is_valid or is_own:
            message = (
                f"invalid header {name[:100]!r} in {origin}: expected NAME=VALUE with a name other than those that the"
                " agent sets, and a value of printable ASCII characters; fix: percent-encode commas"
                if separator
                else f"invalid header in {origin}: expected NAME=VALUE; fix: percent-encode commas in values"
            )
            raise settings.SettingsError(message)
        headers[name] = value
    return headers


def environment_attributes(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of the resource in OTEL_RESOURCE_ATTRIBUTES, as an operator of Kubernetes sets them.

    If one is malformed, all are ignored, as the specification of resources requires.
    """
    found = {}
    for entry in filter(str.strip, environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")):
        name, separator, value = map(str.strip, entry.partition("="))
        value = unquote(value)
        if not (separator and name and name.isprintable() and value.isprintable()):
            return {}
        found[name] = value
    return found


def _tls_files(configured: OtlpSettings, environment: Mapping[str, str], signal: str) -> TlsFiles:
    """Return the files of a connection, of which a context can be created. Raises SettingsError."""
    found = [
        (setting, file) if file else _variable(environment, signal, name)
        for name, setting, file in (
            ("CERTIFICATE", "otlp.ca_file", configured.ca_file),
            ("CLIENT_CERTIFICATE", "otlp.certificate_file", configured.certificate_file),
            ("CLIENT_KEY", "otlp.key_file", configured.key_file),
        )
    ]
    files = TlsFiles(*(file for _, file in found))
    (origin, _), (certificate_origin, _), (key_origin, _) = found
    shown = files.ca_file
    try:
        # The context is not kept: it only shows now whether the files are usable.
        context = ssl.create_default_context(cafile=files.ca_file or None)
        if files.certificate_file:
            origin, shown = (
                certificate_origin,
                f"{files.certificate_file} or {key_origin} {files.key_file}",
            )
            context.load_cert_chain(files.certificate_file, files.key_file or None)
    except OSError as error:
        message = f"cannot use {origin} {shown}: {error}"
        raise settings.SettingsError(message) from error
    return files


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
