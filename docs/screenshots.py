#!/usr/bin/env python3
"""Take the pictures of the web console in docs/pictures: pages of the demo, in Chromium, while its first faults last."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import click
from playwright import sync_api

PICTURES = Path(__file__).resolve().parent / "pictures"
MARGIN = 12


WIDTH = 1200
"""Of the pictures: the navigation of the console has one line."""


class Picture(NamedTuple):
    """Page of a picture, from its top to the end of an element; `link` is the text of a link to follow first."""

    name: str
    path: str
    last: str
    link: str = ""


FIRST = (Picture("overview", "/", "#where figure"),)
"""Taken while two incidents are open, which fit into one row."""
LATER = (
    Picture("incident", "/incidents", "figure >> nth=0", link="NIC"),
    Picture("job", "/jobs", "#open", link="train"),
)
"""Taken when the first fault ends: the curves of the second incident are two minutes long."""
SHOWN = {"FAULT BEGINS  gpu-node-4": FIRST, "FAULT ENDS": LATER}
"""Pictures, by the line of the demo after which they are taken."""


def take(pictures: Sequence[Picture], url: str, directory: Path) -> Iterator[Path]:
    """Save the pictures of the console at a URL; yield their paths."""
    program = shutil.which("chromium")
    if program is None:
        message = "taking pictures failed: chromium: not found; fix: apt-get install chromium"
        raise click.ClickException(message)
    with sync_api.sync_playwright() as playwright:
        sandbox = [] if os.geteuid() else ["--no-sandbox"]
        browser = playwright.chromium.launch(executable_path=program, args=sandbox)
        page = browser.new_page(viewport={"width": WIDTH, "height": 900})
        for picture in pictures:
            page.goto(url + picture.path, wait_until="networkidle")
            if picture.link:
                page.locator("main a").filter(has_text=picture.link).first.click()
                page.wait_for_load_state("networkidle")
            last = page.locator(picture.last).bounding_box() or {"y": 0, "height": 900}
            height = last["y"] + last["height"] + MARGIN
            clip = sync_api.FloatRect(x=0, y=0, width=WIDTH, height=height)
            path = directory / f"{picture.name}.png"
            page.screenshot(path=path, full_page=True, clip=clip)
            yield path
        browser.close()


@contextmanager
def demo_output() -> Iterator[Iterator[str]]:
    """Run the demo, and stop it afterwards; yield the lines that it prints."""
    with tempfile.TemporaryDirectory(prefix="railscope-pictures-") as directory:
        options = ("--any-ports", "--end-with-parent", "--directory", directory)
        command = (sys.executable, "-m", "railscope_simulator.demo", *options)
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:  # noqa: S603 - our own program
            try:
                yield iter(demo.stdout or ())
            finally:
                demo.terminate()
                demo.communicate()


@click.command()
@click.option("--to", default=PICTURES, type=click.Path(path_type=Path), help="Directory.")
def main(to: Path) -> None:
    """Run the demo until its first fault ends, after six minutes, and take pictures of its web console."""
    to.mkdir(parents=True, exist_ok=True)
    url, left = "", dict(SHOWN)
    with demo_output() as lines:
        for line in lines:
            click.echo(line, nl=False)
            if line.rstrip().endswith("web console"):
                url = line.split()[0].rstrip("/")
            for announced in [text for text in left if text in line]:
                for path in take(left.pop(announced), url, to):
                    click.echo(f"{path}: {path.stat().st_size} bytes")
            if not left:
                return
    message = "taking pictures failed: the demo ended: expected a fault that ends; fix: see its output above"
    raise click.ClickException(message)


if __name__ == "__main__":
    main()
