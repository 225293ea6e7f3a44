"""Rendering of pages: templates, static files, and the forms of numbers, times and links in both."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from railscope import api, figures
from railscope.api.status import headline, other_reasons
from railscope.catalog import event_titles, rollups
from railscope.catalog.account import STRAGGLER_MEASURES
from railscope.catalog.gpu_health import reason_text
from railscope.incident_victims import affected_text
from railscope.shipped_files import shipped_files
from railscope.timestamps import SECOND_NS, format_timestamp, parse_timestamp, utc_text
from railscope_collector.console import curves, page_table
from railscope_collector.diagnosis import incident_report as report
from railscope_collector.diagnosis.evidence_words import evidence_text, lowered, worst_text
from railscope_collector.diagnosis.incident_classes import CLASSES, INCIDENT_RUNBOOK
from railscope_collector.diagnosis.incident_table import cause_labels
from railscope_collector.switches import links

_DIRECTORY = Path(__file__).parent
_DIGITS = 12
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file that pages refer to by the digest of its content."""

    url: str
    content: bytes
    content_type: str


def _read_static_files() -> dict[str, StaticFile]:
    found = {}
    for path in sorted((_DIRECTORY / "static").rglob("*")):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:_DIGITS]
            url = f"/static/{digest}/{path.name}"
            found[url] = StaticFile(url, content, _TYPES[path.suffix])
    return found


STATIC_FILES: Mapping[str, StaticFile] = _read_static_files()
"""By URL."""
_URLS = {Path(url).name: url for url in STATIC_FILES}


COLUMNS: Mapping[str, str] = {
    "utilization_ratio": "Busy, 1 min mean",
    "power_watts": "Power",
    "temperature_celsius": "Temperature",
    "thermal_throttle_ratio": "Thermal throttling",
    "transmit_bytes_per_second": "Sent, 1 min mean",
    "receive_bytes_per_second": "Received, 1 min mean",
    "paused_ratio": "Paused, 1 min max",
    "pausing_ratio": "Pauses its switch, 1 min max",
}
"""Readings of a GPU and of the NICs on its rail, with their heads."""
LIST_COLUMNS = {
    name: COLUMNS[name]
    for name in ("utilization_ratio", "power_watts", "temperature_celsius", "pausing_ratio")
}
"""Readings in a list of GPUs; all of them would not fit a screen."""
RAIL_COLUMNS: Mapping[str, str] = {
    "mean_utilization_ratio": "GPUs busy, 1 min mean",
    "max_temperature_celsius": "Temperature (max)",
    "power_watts": "Power",
    "ports_up": "Ports up",
    "transmit_bytes_per_second": "Sent, 1 min mean",
    "receive_bytes_per_second": "Received, 1 min mean",
    "max_paused_ratio": "Paused, 1 min max",
    "max_pausing_ratio": "Pausing, 1 min max",
    "marked_packets_per_second": "Marked packets, 1 min mean",
}


def format_decimal(value: float) -> str:
    """Return a number with at most three decimals."""
    return f"{value:,.3f}".rstrip("0").removesuffix(".")


def measure_title(name: str) -> str:
    """Return a measure of stragglers in words; its name where a newer collector wrote one that is not known."""
    measure = STRAGGLER_MEASURES.get(name)
    return measure.title if measure else name


def straggler_text(stragglers: Sequence[api.JobStraggler]) -> str:
    """Return the straggler with the largest deviation in words, or the reason for none."""
    known = [each for each in stragglers if each.deviation_ratio is not None]
    if not known:
        reasons = [each.unknown for each in stragglers if each.unknown]
        return f"none: {reasons[0]}" if reasons else "none"
    worst = min(known, key=lambda each: each.deviation_ratio or 0.0)
    name = worst.index or worst.gpu
    return f"{worst.node} GPU {name}: {measure_title(worst.measure)} {figures.deviation(worst.deviation_ratio or 0.0)}"


def time_element(timestamp: int | str | None, now_ns: int = 0) -> Markup | str:
    """Return a `time` element in UTC, to the second; as the time since then, with a present. A dash for none."""
    if not timestamp:
        return figures.NONE
    timestamp_ns = parse_timestamp(timestamp) if isinstance(timestamp, str) else timestamp
    text = format_timestamp(timestamp_ns // SECOND_NS * SECOND_NS, "seconds")
    exact = utc_text(timestamp_ns)
    shown = exact.removesuffix(" UTC")
    if now_ns:
        seconds = (now_ns - timestamp_ns) / SECOND_NS
        shown = f"{figures.age(seconds)} ago" if seconds > 0 else "now"
        pattern = '<time datetime="{}" title="{}">{}</time>'
        return Markup(pattern).format(text, exact, shown)  # noqa: S704 - format escapes
    return Markup('<time datetime="{}">{}</time>').format(text, shown)


RUNBOOK_FILES = {
    path.stem: path for path in shipped_files().values() if path.parent.name == "runbooks"
}
_SECTION = re.compile(r"^## (\w+)$", re.MULTILINE)
RUNBOOKS = {name: page_table.page_path("runbook", name) for name in RUNBOOK_FILES}
RUNBOOKS |= {
    alert: f"{RUNBOOKS[name]}#{alert.lower()}"
    for name, file in RUNBOOK_FILES.items()
    for alert in _SECTION.findall(file.read_text())
}
"""Paths of the runbooks that are installed, by the name of a page and of an alert with a section."""

# Read at the start, as the modules are: files that an upgrade replaces later do not fit a running collector.
_TEMPLATES = {path.name: path.read_text() for path in (_DIRECTORY / "templates").iterdir()}
_environment = jinja2.Environment(
    loader=jinja2.DictLoader(_TEMPLATES),
    autoescape=True,
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    auto_reload=False,
)
_environment.globals |= {
    "path": page_table.page_path,
    "has_runbook": INCIDENT_RUNBOOK in RUNBOOKS,
    "static": _URLS.__getitem__,
    "node_columns": COLUMNS,
    "gpu_columns": LIST_COLUMNS,
    "rail_columns": RAIL_COLUMNS,
    "other_reasons": other_reasons,
    "periods": {"15 minutes": 15, "1 hour": 60, "6 hours": 360},
}
_environment.filters |= {
    "headline": headline,
    "number": figures.quantity,
    "count": figures.count,
    "likelihood": figures.likelihood,
    "decimal": format_decimal,
    "straggler": straggler_text,
    "measure": measure_title,
    "deviation": figures.deviation,
    "entity": report.entity_text,
    "affected": affected_text,
    "event_title": event_titles.title_of,
    "rollup": lambda name: derived.title if (derived := rollups().get(name)) else name,
    "reason": reason_text,
    "evidence": evidence_text,
    "link_evidence": lambda name: links.EVIDENCE_WORDS.get(name, name),
    "worst": worst_text,
    "class_title": lambda name: lowered(CLASSES[name].title),
    "labels": cause_labels,
    "nanoseconds": parse_timestamp,
    "duration": figures.duration,
    "quantity": lambda value, name: figures.quantity(value, figures.unit_of(name)),
    "in_unit": figures.quantity,
    "optical_power": figures.optical_power,
    "when": time_element,
    "clock": curves.clock_text,
    "picture": curves.picture,
}


def render(template: str, **values: object) -> Markup:
    """Render a template. Blocking."""
    return Markup(_environment.get_template(template).render(values))  # noqa: S704 - the templates escape


# Without HTML: tags in a document are text.
_markdown = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")


def render_markdown(text: str, targets: Mapping[str, str]) -> Markup:
    """Return a document as HTML; `targets` are the paths of files that links and code may name, other links are text."""
    rendered: list[Token] = []
    for token in _markdown.parse(text):
        if token.type == "inline":
            token.children = list(_link(token.children or (), targets))
            if rendered[-1].type == "heading_open":
                anchor = re.sub(r"[^\w]+", "-", token.content.strip().lower())
                rendered[-1].attrSet("id", anchor)
        elif token.type in _CELLS:
            token.attrs |= _CELLS[token.type]
        frame = _TABLE_FRAME.get(token.type, "")
        added = [Token("html_block", "", 0, content=frame), token]
        rendered += (added if token.nesting > 0 else added[::-1]) if frame else [token]
    found = _markdown.renderer.render(rendered, _markdown.options, {})
    return Markup(found.replace("<pre>", '<pre tabindex="0">'))  # noqa: S704 - the renderer escapes


_CELLS: Mapping[str, dict[str, str | int | float]] = {
    "th_open": {"scope": "col"},
    "td_open": {"class": "text"},
}
_TABLE_FRAME = {
    "table_open": '<div class="scroll" tabindex="0" role="region" aria-label="Table">\n',
    "table_close": "</div>\n",
}


def _link(tokens: Iterable[Token], targets: Mapping[str, str]) -> Iterator[Token]:
    """Yield the parts of a text, with links to known files only."""
    path = ""
    for token in tokens:
        if token.type == "link_open":
            path = _target(str(token.attrs["href"]), targets)
            if path:
                yield Token("link_open", "a", 1, attrs={"href": path})
        elif token.type == "link_close":
            if path:
                yield token
            path = ""
        elif (
            token.type == "code_inline" and not path and (named := _target(token.content, targets))
        ):
            yield Token("link_open", "a", 1, attrs={"href": named})
            yield token
            yield Token("link_close", "a", -1)
        else:
            yield token


def _target(text: str, targets: Mapping[str, str]) -> str:
    file, _, section = text.partition("#")
    path = targets.get(Path(file).name.removesuffix(".md"), "")
    return f"{path}#{section}" if path and section else path
