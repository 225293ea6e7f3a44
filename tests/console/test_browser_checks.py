"""The checks of pages reject what they are for, on pages of one small server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from aiohttp import web
from support.browser import POLICY, Visitor, visiting

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = pytest.mark.asyncio(loop_scope="session")

_PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A page</title>
<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">
<link rel="stylesheet" href="/style.css"><script src="/script.js" defer></script></head>
<body><main><h1>A page</h1>{}</main></body></html>"""
_STYLE = """:root { color-scheme: light dark }
.wide { width: 500px } .pale { color: #aaa; background: #fff }
@media (prefers-color-scheme: dark) { .pale-in-the-dark { color: #222; background: #000 } }"""
CORRECT = "<p>A text.</p>"
FAULTS = {
    '<p class="wide">A text.</p>': "wider than 390 px",
    '<p class="pale">A text.</p>': "axe, light, with scripts: color-contrast",
    '<p class="pale-in-the-dark">A text.</p>': "axe, dark, without scripts: color-contrast",
    '<img src="/style.css">': "axe, light, with scripts: image-alt",
    '<p style="color: red">A text.</p>': "enforce style-src-attr inline",
    "<script>document.title = 'executed'</script>": "enforce script-src-elem inline",
    '<img alt="picture" src="http://127.0.0.2:1/">': "request to another host: http://127.0.0.2",
    '<p id="throws">A text.</p>': "error: as requested",
    '<p id="logs">A text.</p>': "console: as requested",
    "<!-- A comment, which is a node as well, in a page of more than 600 kB. -->"
    * 9000: "DOM nodes: too many",
}
_SCRIPT = """if (document.getElementById('logs')) console.log('as requested');
if (document.getElementById('throws')) throw new Error('as requested');"""


def _respond(text: str, kind: str = "text/html") -> web.Response:
    headers = {"Content-Security-Policy": "; ".join(POLICY)}
    return web.Response(text=text, content_type=kind, headers=headers)


async def _page(request: web.Request) -> web.Response:
    is_correct = request.match_info["page"] == "correct"
    return _respond(_PAGE.format(CORRECT if is_correct else "".join(FAULTS)))


async def _style(_: web.Request) -> web.Response:
    return _respond(_STYLE, "text/css")


async def _script(_: web.Request) -> web.Response:
    return _respond(_SCRIPT, "text/javascript")


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(chromium: Browser) -> AsyncIterator[Visitor]:
    application = web.Application()
    for path, handler in {"/style.css": _style, "/script.js": _script, "/{page}": _page}.items():
        application.router.add_get(path, handler)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with visiting(chromium, f"http://127.0.0.1:{runner.addresses[0][1]}") as found:
            yield found
    finally:
        await runner.cleanup()


async def test_a_page_without_faults_has_no_problems(visitor: Visitor) -> None:
    visited = await visitor.visit("/correct")
    assert visited.text == visited.text_without_scripts == "A page\n\nA text."


async def test_every_fault_of_a_page_is_found(visitor: Visitor) -> None:
    with pytest.raises(AssertionError) as raised:
        await visitor.visit("/faulty", status=201)
    assert [problem for problem in FAULTS.values() if problem not in str(raised.value)] == []
