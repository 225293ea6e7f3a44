"""The website of the documentation: its links lead somewhere, its search finds pages, nothing is loaded from other hosts."""

from __future__ import annotations

import http.server
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.browser import running_browser

ROOT = Path(__file__).parents[1]
LOADS = re.compile(
    r"<(?:script|link|img|iframe|source|audio|video|embed|object)\b[^>]*?\b(?:src|href|data)=\"(?P<place>[^\"]+)\""
    r"|(?:url\(|@import)\s*[\"']?(?P<style>[^\"')\s]+)"
)
BROKEN = """
import sys; from pathlib import Path; sys.path.insert(0, "docs"); import website
sys.exit(not website.build(Path(sys.argv[1]), Path(sys.argv[2])))
"""


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Write nothing to the output of the tests."""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    outcome = run("docs/website.py", "--to", str(directory))
    assert (outcome.returncode, outcome.stderr) == (0, "")
    return directory


@pytest.fixture
def url(site: Path) -> Iterator[str]:
    handler = partial(QuietHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.thorough
def test_every_page_of_the_repository_is_there(site: Path):
    pages = [*ROOT.glob("docs/**/*.md"), *ROOT.glob("alerts/runbooks/*.md"), ROOT / "README.md"]
    built = [site / page.relative_to(ROOT).with_suffix(".html") for page in pages]
    assert [page for page in built if not page.is_file()] == []


@pytest.mark.thorough
def test_nothing_is_loaded_from_another_host(site: Path):
    files = [path for end in ("html", "css") for path in site.rglob(f"*.{end}")]
    loads = {
        found["place"] or found["style"]
        for path in files
        for found in LOADS.finditer(path.read_text())
    }
    assert any(load.endswith("searchtools.js") for load in loads)
    assert {load for load in loads if re.match(r"(?!data:)(\w+:|//)", load)} == set()


@pytest.mark.thorough
async def test_a_search_finds_a_page_and_requests_nothing_from_another_host(url: str):
    requested: list[str] = []
    async with running_browser() as browser:
        page = await browser.new_page()
        page.on("request", lambda request: requested.append(request.url))
        await page.goto(url)
        await page.fill("input[name=q]", "retired GPU")
        await page.press("input[name=q]", "Enter")
        await page.click("#search-results a:has-text('Retired GPUs')")
        await page.wait_for_url("**/docs/tenancy.html*")
        assert "no longer belong to the cluster" in await page.inner_text("article")
    assert f"{url}/searchindex.js" in {each.partition("?")[0] for each in requested}
    assert [each for each in requested if not each.startswith((f"{url}/", "data:"))] == []


@pytest.mark.thorough
@pytest.mark.parametrize("link", ["missing.md", "other.md#missing", "#missing"])
def test_a_link_that_leads_nowhere_is_an_error(link: str, tmp_path: Path):
    (tmp_path / "source").mkdir()
    (tmp_path / "source/other.md").write_text("# Other\n")
    contents = "\n```{toctree}\nother\n```\n"
    (tmp_path / "source/index.md").write_text(f"# Start\n\n[there]({link})\n{contents}")
    outcome = run("-c", BROKEN, str(tmp_path / "source"), str(tmp_path / "site"))
    assert outcome.returncode == 1
    assert "index.md:3: WARNING" in outcome.stderr
