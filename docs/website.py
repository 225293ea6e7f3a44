#!/usr/bin/env python3
"""Build the documentation as a website: the pages of the repository as HTML, by reader and task, with a search.

The site has the directories of the repository, so the relative links of the pages hold in both. It needs no
server and loads nothing from other hosts. A page without a place in NAVIGATION, and a link or an anchor
that leads nowhere, is an error.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
NAVIGATION: Mapping[str, tuple[str, ...]] = {
    "Introduction": ("Overview <README>", "All pages <docs/README>", "docs/comparison", "docs/glossary"),
    "Install": (
        "docs/operator", "docs/kubernetes", "docs/sizing", "docs/availability", "docs/security", "docs/access",
        "docs/integrations", "docs/compatibility",
    ),
    "On call": (
        "docs/on-call", "docs/console", "docs/jobs", "docs/switches", "alerts/runbooks/index",
    ),
    "Finance": ("docs/first-invoice", "docs/billing", "docs/metering", "docs/tenancy"),
    "Audit": ("docs/audit",),
    "Tenant": ("docs/tenant",),
    "Reference": (
        "docs/metrics/README", "docs/configuration", "docs/cli", "docs/alerts",
        "docs/dashboards", "docs/diagnosis", "docs/health", "docs/xids", "docs/readings",
    ),
    "Develop": ("docs/developer", "docs/architecture", "bench/README", "CONTRIBUTING", "SECURITY", "CHANGELOG"),
}  # fmt: skip
"""Pages by reader, in the order of reading."""
PAGES = ("*.md", "docs/*.md", "bench/README.md")
LISTED = ("alerts/runbooks/*.md", "docs/metrics/*.md")
"""Pages that a page of NAVIGATION links to; with each of them, the navigation of every page would take most of the time."""
SETTINGS = {
    "extensions": ["myst_parser"],
    "html_copy_source": False,
    "html_show_copyright": False,
    "html_theme": "furo",
    "html_title": "Railscope",
    "myst_heading_anchors": 6,
    "project": "Railscope",
    "suppress_warnings": ["myst.header"],  # sections of a runbook begin at the third level
}
_ORPHAN = "---\norphan: true\n---\n"
_LINK = re.compile(r"(?<=\]\()(?!https?:)[^)#\s]+(?=\))")


def write_source(root: Path, to: Path) -> None:
    """Copy all pages, with what they link to, and write the first page: the head of README, and the contents of the site."""
    placed = {page for pages in NAVIGATION.values() for page in pages}
    for pattern in (*PAGES, *LISTED):
        for page in root.glob(pattern):
            name = page.relative_to(root)
            is_orphan = pattern in LISTED and str(name.with_suffix("")) not in placed
            _write(to / name, _ORPHAN * is_orphan + _with_linked_files(page, root, to))
    runbooks = to / "alerts/runbooks"
    _write(runbooks / "index.md", _list_of_files("Runbooks", runbooks))
    contents = (
        "\n".join(["```{toctree}", f":caption: {reader}", ":maxdepth: 1", "", *pages, "```", ""])
        for reader, pages in NAVIGATION.items()
    )
    front = _with_linked_files(root / "README.md", root, to).partition("\n```")[0]
    _write(to / "index.md", "\n".join([front, "", *contents]))


def _with_linked_files(page: Path, root: Path, to: Path) -> str:
    """Copy the files that a page links to; return its text, with links to lists in place of directories."""

    def copy(link: re.Match[str]) -> str:
        target = (page.parent / link[0]).resolve()
        place = to / target.relative_to(root)
        if target.is_dir():
            shutil.copytree(target, place, dirs_exist_ok=True)
            _write(place / "index.md", _ORPHAN + _list_of_files(target.name, target))
            return f"{link[0]}/index.md"
        if target.suffix != ".md":
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(target, place)
        return link[0]

    return _LINK.sub(copy, page.read_text())


def _list_of_files(title: str, directory: Path) -> str:
    names = sorted(
        str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()
    )
    return f"# {title}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def build(source: Path, to: Path) -> bool:
    """Build the site of a directory of pages; true without any warning."""
    with tempfile.TemporaryDirectory() as trees:
        site = Sphinx(source, None, to, trees, "html", SETTINGS, status=None, warningiserror=True)
        for language in ("csv", "promql"):
            site.add_lexer(language, TextLexer)
        site.build()
    return site.statuscode == 0


@click.command()
@click.option(
    "--to",
    type=click.Path(path_type=Path, file_okay=False),
    default=ROOT / "site",
    show_default="site",
    help="Directory of the site.",
)
def main(to: Path) -> None:
    """Build the site. Exit status 1 if a page, a link or an anchor is missing."""
    with tempfile.TemporaryDirectory() as source:
        write_source(ROOT, Path(source))
        sys.exit(not build(Path(source), to))


if __name__ == "__main__":
    main()
