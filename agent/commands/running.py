"""State of the governor of the agent that runs on this node, from its metrics endpoint."""

from __future__ import annotations

import re
import ssl
from http import HTTPStatus

from agent.config import AgentSettings
from agent.sampling.budget import percent
from agent.sampling.source import Finding, Verdict
from agent.shipping.http_client import HttpClient
from railscope.catalog import agent as catalog
from railscope.settings import SettingsError

TIMEOUT_SECONDS = 5.0
MAX_PAGE_BYTES = 16 << 20
_WHAT = "running agent"
_ANYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]", "[::]": "[::1]"}  # noqa: S104 - any
_OF_SOURCE = re.compile(r'(?P<name>\w+)\{source="(?P<source>[^"]+)"\} (?P<value>\S+)')
_OF_AGENT = re.compile(r"(?P<name>\w+) (?P<value>\S+)")
_STATE = re.compile(r'\w+\{resource="(?P<resource>\w+)",state="(?P<state>\w+)"\} 1')


async def running(settings: AgentSettings) -> list[Finding]:
    """Return findings from the agent at the configured address; one finding if none answers."""
    url = _url(settings)
    if not url:
        return [Finding(_WHAT, Verdict.ABSENT, "it takes any free port, and cannot be asked")]
    client = HttpClient(url, _tls(settings), TIMEOUT_SECONDS, MAX_PAGE_BYTES)
    try:
        token = settings.read_page_token()
    except SettingsError as error:
        return [Finding(_WHAT, Verdict.BROKEN, str(error), "read it as the agent's user")]
    shown = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = await client.get(shown)
    except OSError as error:
        problem = error.strerror or str(error) or "no answer"
        return [Finding(_WHAT, Verdict.ABSENT, f"none that answers at {url}: {problem}")]
    finally:
        await client.close()
    if answer.status != HTTPStatus.OK:
        detail = f"{url} answers with {answer.status}"
        return [Finding(_WHAT, Verdict.BROKEN, detail, "show its page_token, by --config")]
    return _told(url, answer.body.decode(errors="replace"))


def _url(settings: AgentSettings) -> str:
    host, _, port = settings.listen.rpartition(":")
    if port == "0":
        return ""
    scheme = "https" if settings.tls.certificate_file else "http"
    return f"{scheme}://{_ANYWHERE.get(host, host)}:{port}/metrics"


def _tls(settings: AgentSettings) -> ssl.SSLContext | None:
    """Return a context that trusts the certificate of the metrics endpoint for any host name."""
    if not settings.tls.certificate_file:
        return None
    context = ssl.create_default_context(cafile=settings.tls.certificate_file)
    context.check_hostname = False
    return context


def _told(url: str, page: str) -> list[Finding]:
    lines = page.splitlines()
    of_agent = {m["name"]: float(m["value"]) for line in lines if (m := _OF_AGENT.fullmatch(line))}
    of_source: dict[str, dict[str, float]] = {}
    for line in lines:
        if match := _OF_SOURCE.fullmatch(line):
            of_source.setdefault(match["name"], {})[match["source"]] = float(match["value"])
    use = of_agent.get(catalog.AGENT_CPU_USE.name)
    budget = of_agent.get(catalog.AGENT_CPU_BUDGET.name)
    if catalog.AGENT_MEMORY.name not in of_agent:
        return [Finding(_WHAT, Verdict.BROKEN, f"{url} is the page of something else")]
    parts = ["not measured yet" if use is None else f"takes {percent(use)} of a core"]
    if budget:
        parts.append(f"budget {percent(budget)}")
    parts += [
        f"{match['resource']} {match['state'].replace('_', ' ')}"
        for line in lines
        if line.startswith(catalog.GOVERNOR_STATE.name) and (match := _STATE.fullmatch(line))
    ]
    found = [Finding(_WHAT, Verdict.SUPPORTED, ", ".join(parts))]
    periods = of_source.get(catalog.SOURCE_PERIOD.name, {})
    for source, stretch in sorted(of_source.get(catalog.SOURCE_STRETCH.name, {}).items()):
        if stretch > 1:
            every = periods.get(source, 0.0)
            detail = f"{source} is read every {every:g} s instead of {every / stretch:g} s"
            found.append(Finding("governor", Verdict.SUPPORTED, detail))
    return found
