"""Chromium through Playwright, and the checks of every page of the console in it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, Page, Request, Route

PATIENCE_MILLISECONDS = 120_000
MAX_BYTES, MAX_NODES = 600_000, 6_000
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
POLICY = (
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:",
    "connect-src 'self'", "form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
)  # fmt: skip
_MEASURE = """() => {
    const loaded = [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')];
    const size = loaded.filter(each => each.initiatorType !== 'fetch')
        .reduce((sum, each) => sum + each.decodedBodySize, 0);
    const walker = document.createTreeWalker(document, NodeFilter.SHOW_ALL);
    let nodes = 1;
    while (walker.nextNode()) nodes += 1;
    return [size, nodes];
}"""
_OVERFLOWING = """() => {
    const width = document.documentElement.clientWidth;
    if (document.documentElement.scrollWidth <= width) return [];
    return [...document.querySelectorAll('body *')]
        .filter(each => !each.closest('.scroll') && each.getBoundingClientRect().right > width + 1)
        .map(each => each.tagName + '.' + each.getAttribute('class')).slice(0, 10)
        .concat('scrolls to ' + document.documentElement.scrollWidth);
}"""
_NAME_OF_FOCUS = """() => {
    const focused = document.activeElement;
    if (!focused || focused === document.body) return '';
    return (focused.getAttribute('aria-label') || focused.innerText || focused.labels?.[0]?.innerText
        || focused.name || focused.tagName).trim().replace(/\\s+/g, ' ');
}"""
_RECORD_VIOLATIONS = """
    window.policyViolations = [];
    document.addEventListener('securitypolicyviolation', event => window.policyViolations.push(
        event.disposition + ' ' + event.violatedDirective + ' ' + event.blockedURI));
"""
_RUN_AXE = """async () => (await axe.run({resultTypes: ['violations']})).violations.map(
    each => each.id + ': ' + each.nodes.map(node => node.html.slice(0, 200)
        + ' ' + node.failureSummary).slice(0, 3).join('; '))"""


@contextlib.asynccontextmanager
async def running_browser() -> AsyncIterator[Browser]:
    """A Chromium until the end; skips the test where Chromium or Playwright is not installed."""
    api = pytest.importorskip("playwright.async_api", reason="no Playwright on this machine")
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no chromium on this machine")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with api.async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=program, args=arguments, timeout=PATIENCE_MILLISECONDS
        )
        yield browser
        await browser.close()


@cache
def _axe_source() -> str:
    return (files("axe_playwright_python") / "axe.min.js").read_text()


@dataclass(frozen=True)
class VisitedPage:
    """Text of one page, with scripts and without."""

    text: str
    text_without_scripts: str


@dataclass
class Visitor:
    """Two pages of a browser: one in light with scripts, one dark at 390 px from which scripts are removed.

    axe waits with timers, and a page of a browser with scripts off has none.
    """

    url: str
    page: Page
    plain: Page
    problems: list[str] = field(default_factory=list)
    """Console messages, errors of scripts, and requests to other hosts."""

    async def visit(self, path: str, status: int = 200, *, is_plain: bool = True) -> VisitedPage:
        """Load a page, also dark and without scripts, assert the checks of every page, and return its text."""
        self.problems.clear()
        await self._load(self.page, path, status)
        await self._check_bounded()
        await self._check_accessible(self.page, "light, with scripts")
        text = await self.page.inner_text("body")
        await self.page.set_viewport_size(NARROW)
        await self._check_width(self.page)
        await self.page.set_viewport_size(WIDE)
        text_without_scripts = text
        if is_plain:
            await self._load(self.plain, path, status)
            await self._check_width(self.plain)
            await self._check_accessible(self.plain, "dark, without scripts")
            text_without_scripts = await self.plain.inner_text("body")
        # Chromium reports the error status of a document itself as a message of the console.
        expected = f"the server responded with a status of {status} "
        problems = [each for each in self.problems if status < 400 or expected not in each]
        assert not problems, "\n".join([f"{path} has problems:", *problems])
        return VisitedPage(text, text_without_scripts)

    async def sign_in(self, token: str) -> None:
        """Sign in with a token by the form; both pages have the session."""
        await self.page.goto(f"{self.url}/sign-in")
        await self.page.fill("input[name=token]", token)
        await self.page.press("input[name=token]", "Enter")
        await self.page.wait_for_url(lambda url: not url.endswith("/sign-in"))
        await self.plain.context.add_cookies(await self.page.context.cookies())

    async def open(self, path: str, status: int = 200) -> None:
        """Load a page with scripts only, and assert its status."""
        response = await self.page.goto(self.url + path)
        assert response is not None, path
        assert response.status == status, path

    async def status_of(self, path: str) -> int:
        """Return the status of a page for the session, without rendering it."""
        answer = await self.page.context.request.get(
            self.url + path, headers={"Accept": "text/html"}, max_redirects=0
        )
        return answer.status

    async def tab_order(self, limit: int = 40) -> list[str]:
        """Return the names of what has the focus after each press of Tab, from the start of the page."""
        names: list[str] = []
        while len(names) < limit:
            await self.page.keyboard.press("Tab")
            name = await self.page.evaluate(_NAME_OF_FOCUS)
            if not name or name in names[:1]:
                break
            names.append(name)
        return names

    async def _load(self, page: Page, path: str, status: int) -> None:
        response = await page.goto(self.url + path)
        assert response is not None, path
        if response.status != status:
            self.problems.append(f"status {response.status}, expected {status}")
        policy = (await response.header_value("content-security-policy") or "").split("; ")
        self.problems += [
            f"no {directive!r} in the policy" for directive in POLICY if directive not in policy
        ]

    async def _check_bounded(self) -> None:
        """Check the size of the page, with its scripts and styles, and the policy's reports."""
        size, nodes = await self.page.evaluate(_MEASURE)
        if size > MAX_BYTES or nodes > MAX_NODES:
            self.problems.append(f"{size} bytes, {nodes} DOM nodes: too many")
        self.problems += await self.page.evaluate("() => window.policyViolations")

    async def _check_accessible(self, page: Page, variant: str) -> None:
        await page.evaluate(_axe_source())
        self.problems += [f"axe, {variant}: {each}" for each in await page.evaluate(_RUN_AXE)]

    async def _check_width(self, page: Page) -> None:
        found = await page.evaluate(_OVERFLOWING)
        if found:
            self.problems.append(f"wider than 390 px: {found}")

    def watch(self, context: BrowserContext) -> None:
        """Record what the pages of a context load and report."""
        context.on("console", lambda message: self.problems.append(f"console: {message.text}"))
        context.on("weberror", lambda error: self.problems.append(f"error: {error.error}"))
        context.on("request", self._on_request)

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.url + "/", "data:")):
            self.problems.append(f"request to another host: {request.url}")


async def _remove_scripts(route: Route) -> None:
    """Respond with the page as a browser with scripts off shows it."""
    if route.request.resource_type != "document":
        await route.continue_()
        return
    response = await route.fetch()
    text = re.sub(r"(?s)<script\b.*?</script>|</?noscript>", "", await response.text())
    await route.fulfill(response=response, body=text)


@contextlib.asynccontextmanager
async def visiting(browser: Browser, url: str) -> AsyncIterator[Visitor]:
    """A visitor of the console at this address, without a session."""
    scripted = await browser.new_context(viewport=WIDE, color_scheme="light")
    plain = await browser.new_context(viewport=NARROW, color_scheme="dark")
    try:
        await plain.route("**/*", _remove_scripts)
        await scripted.add_init_script(_RECORD_VIOLATIONS)
        visitor = Visitor(url, await scripted.new_page(), await plain.new_page())
        for context in (scripted, plain):
            context.set_default_timeout(PATIENCE_MILLISECONDS)
            visitor.watch(context)
        yield visitor
    finally:
        await scripted.close()
        await plain.close()
