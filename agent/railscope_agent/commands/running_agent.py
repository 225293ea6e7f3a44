"""Findings from the metrics endpoint of the agent that runs on this node: its use, its budget and its governor."""

from __future__ import annotations

import re
import ssl
from http import HTTPStatus

from railscope import figures
from railscope.catalog import agent as catalog
from railscope.settings import SettingsError
from railscope_agent.config import AgentSettings
from railscope_agent.sampling.probe_result import ProbeFinding, ProbeVerdict
from railscope_agent.shipping import (
    http_client,
)

TIMEOUT_SECONDS = 5.0
MAX_EXPOSITION_BYTES = 16 << 20
QUERY = "detail=full&collect%5B%5D=agent"
"""Query for the metrics of the agent itself."""
_WILDCARD_HOSTS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]"}  # noqa: S104 - any
_OF_SOURCE = re.compile(r'(?P<name>\w+)\{source="(?P<source>[^"]+)"\} (?P<value>\S+)')
_OF_AGENT = re.compile(r"(?P<name>\w+) (?P<value>\S+)")
_STATE = re.compile(r'\w+\{resource="(?P<resource>\w+)",state="(?P<state>\w+)"\} 1')


async def check_running_agent(settings: AgentSettings) -> list[ProbeFinding]:
    """Return findings from the agent at the configured address; one finding if none answers."""
    url = _url(settings)
    if not url:
        return [
            _running_finding(ProbeVerdict.ABSENT, "not queried: the port is not fixed (port 0)")
        ]
    client = http_client.HttpClient(url, _tls(settings), TIMEOUT_SECONDS, MAX_EXPOSITION_BYTES)
    try:
        token = settings.read_metrics_token()
    except SettingsError as error:
        remedy = "run the check as the agent's user"
        return [_running_finding(ProbeVerdict.BROKEN, str(error), remedy)]
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        answer = await client.get(headers, f"{client.target}?{QUERY}")
    except OSError as error:
        problem = error.strerror or str(error) or "no response"
        return [_running_finding(ProbeVerdict.ABSENT, f"no response from {url}: {problem}")]
    finally:
        await client.close()
    if answer.status != HTTPStatus.OK:
        detail = f"{url} returned status {answer.status}"
        remedy = "specify the settings file that contains its metrics_token with --config"
        return [_running_finding(ProbeVerdict.BROKEN, detail, remedy)]
    return _metrics_findings(url, answer.body.decode(errors="replace"))


def _running_finding(verdict: ProbeVerdict, detail: str, remedy: str = "") -> ProbeFinding:
    return ProbeFinding("running agent", verdict, detail, remedy)


def _url(settings: AgentSettings) -> str:
    host, _, port = settings.listen.rpartition(":")
    if port == "0":
        return ""
    scheme = "https" if settings.tls.certificate_file else "http"
    return f"{scheme}://{_WILDCARD_HOSTS.get(host, host)}:{port}/metrics"


def _tls(settings: AgentSettings) -> ssl.SSLContext | None:
    """Return a context that trusts the certificate of the metrics endpoint for any host name."""
    if not settings.tls.certificate_file:
        return None
    context = ssl.create_default_context(cafile=settings.tls.certificate_file)
    # The certificate is for the name by which other nodes reach the endpoint. The connection is to this node,
    # and trusts this certificate only.
    context.check_hostname = False
    return context


def _metrics_findings(url: str, exposition: str) -> list[ProbeFinding]:
    lines = exposition.splitlines()
    of_agent = {m["name"]: float(m["value"]) for line in lines if (m := _OF_AGENT.fullmatch(line))}
    of_source: dict[str, dict[str, float]] = {}
    for line in lines:
        if match := _OF_SOURCE.fullmatch(line):
            of_source.setdefault(match["name"], {})[match["source"]] = float(match["value"])
    use = of_agent.get(catalog.AGENT_CPU_USE.name)
    budget = of_agent.get(catalog.AGENT_CPU_BUDGET.name)
    if catalog.AGENT_MEMORY.name not in of_agent:
        detail = f"{url} is not the metrics endpoint of an agent"
        return [_running_finding(ProbeVerdict.BROKEN, detail)]
    parts = ["not measured yet" if use is None else f"uses {figures.percent(use)} of a core"]
    if budget:
        parts.append(f"budget {figures.percent(budget)}")
    parts += [
        f"{match['resource']} {match['state'].replace('_', ' ')}"
        for line in lines
        if line.startswith(catalog.GOVERNOR_STATE.name) and (match := _STATE.fullmatch(line))
    ]
    findings = [_running_finding(ProbeVerdict.SUPPORTED, ", ".join(parts))]
    periods = of_source.get(catalog.SOURCE_PERIOD.name, {})
    for source, period_factor in sorted(of_source.get(catalog.PERIOD_FACTOR.name, {}).items()):
        if period_factor > 1:
            period_seconds = periods.get(source, 0.0)
            detail = f"{source} is read every {period_seconds:g} s instead of {period_seconds / period_factor:g} s"
            findings.append(ProbeFinding.supported("governor", detail))
    return findings
