"""Views as InfluxDB line protocol, written through influxdb-client.

The library's point objects cost far more than the lines that they become, so lines are formatted here and
passed to it as bytes. Lines that the server rejects because of their content would be rejected again: they
are dropped immediately, others wait.
"""

from __future__ import annotations

import asyncio
import io
import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import structlog

from railscope.catalog import collector as catalog
from railscope.http_responses import bound_responses, retry_after_seconds
from railscope.service import run_in_thread
from railscope.settings import SettingsError, read_named_file, shown_url
from railscope.untrusted_text import DECODING_ERRORS, printable
from railscope_collector.config import InfluxSettings
from railscope_collector.fleet.view_cells import View, ViewCell
from railscope_collector.sinks.queued_writer import (
    MAX_PROBLEM_LENGTH,
    QueuedBatch,
    QueuedWriter,
    WriteError,
)
from railscope_collector.view_refresh import CollectorViews

log = structlog.get_logger(__name__)

LINES_PER_WRITE = 5000
TIMEOUT_SECONDS = 10.0
MAX_RESPONSE_BYTES = 1 << 20
_NEVER_ACCEPTED = {400, 413, 422}
_PARTIAL_WRITE = re.compile(r"partial write: .*\bdropped=([0-9]{1,9})\b", re.DOTALL)
"""Message of InfluxDB 1 and 2 for points that it dropped, in a status of failure: it has written the others."""
_UNPARSED_LINE = re.compile(r"(?:^|partial write: )unable to parse '", re.MULTILINE)
"""Each line that InfluxDB 1 could not parse, in such a message: they are not in the number of dropped points."""
_TAG_ESCAPES = str.maketrans({",": "\\,", "=": "\\=", " ": "\\ ", "\n": "\\ ", "\r": "\\ "})
_AMBIGUOUS_BACKSLASHES = re.compile(r"\\+(?=[,= \r\n]|\Z)")


def format_lines(view: View) -> list[str]:
    """Return a view as lines: one measurement per metric, its labels as tags, the field `value`.

    The protocol cannot represent a number that is not finite.
    """
    return [
        _format_line(cell, view.timestamp_ns) for cell in view.cells if math.isfinite(cell.value)
    ]


def _format_line(cell: ViewCell, timestamp_ns: int) -> str:
    tags = "".join(
        f",{label}={_escape_tag(value)}"
        for label, value in zip(cell.metric.about.labels, cell.labels, strict=True)
        if value
    )
    return f"{cell.metric.name}{tags} value={float(cell.value)!r} {timestamp_ns}"


def _escape_tag(value: str) -> str:
    """Return a tag's value, escaped; a line cannot contain a line break, so that becomes a space.

    A backslash before a special character is doubled, otherwise it would count as its escape.
    VictoriaMetrics reads that as one backslash. InfluxDB checks the last character only and would read a
    final backslash, doubled or not, as the escape of the space after the tags: so a space is appended, as
    in influxdb-client's own points.
    """
    if "\\" in value:
        value = _AMBIGUOUS_BACKSLASHES.sub(lambda match: match[0] * 2, value)
        if value.endswith("\\"):
            value += " "
    return value.translate(_TAG_ESCAPES)


class _ErrorDocument(msgspec.Struct):
    """Error of InfluxDB 2 (`message`) or 1 (`error`)."""

    message: str = ""
    error: str = ""


@dataclass(slots=True)
class InfluxSink:
    """Writes all views periodically, as long as it runs."""

    settings: InfluxSettings
    views: Callable[[], Awaitable[CollectorViews]]
    timeout_seconds: float = TIMEOUT_SECONDS
    writer: QueuedWriter = field(init=False)
    _token: str = ""

    def __post_init__(self) -> None:
        """Read the token. Raises SettingsError."""
        self._token = read_token(self.settings)
        url, limit = self.settings.url, self.settings.max_buffered_lines
        self.writer = QueuedWriter("influx", url, limit)

    def cells(self) -> Iterator[ViewCell]:
        """Yield the metrics of the sink itself."""
        yield ViewCell(catalog.SINK_WRITTEN, (), self.writer.written)
        yield ViewCell(catalog.SINK_DROPPED, (), self.writer.dropped)

    async def run(self) -> None:
        """Write until cancelled; return immediately if no server is configured."""
        if not self.settings.url:
            return
        # In a thread: the import of the library takes a noticeable time.
        client = await run_in_thread(_client, self.settings, self._token, self.timeout_seconds)

        async def send(body: bytes) -> int:
            return await run_in_thread(_write, client, self.settings, body)

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.writer.run(send))
                while True:
                    await asyncio.sleep(self.settings.period_seconds)
                    self.writer.add(self._batches(await self.views()))
        finally:
            client.close()

    def _batches(self, views: CollectorViews) -> Iterator[QueuedBatch]:
        shown = (views.cluster, views.rail, views.tenant, views.node, views.inventory)
        lines = [line for view in shown for line in format_lines(view)]
        largest = min(LINES_PER_WRITE, self.settings.max_buffered_lines)
        for start in range(0, len(lines), largest):
            part = lines[start : start + largest]
            yield QueuedBatch("\n".join(part).encode(), len(part))


def read_token(settings: InfluxSettings) -> str:
    """Return the token for writing. Raises SettingsError if its file cannot be read."""
    file = settings.token_file
    return read_named_file("influx.token_file", file, "ascii") if file else ""


def probe(settings: InfluxSettings) -> str:
    """Write one line of `railscope_check` and return a message. Blocking; raises SettingsError."""
    client, url = _client(settings, read_token(settings)), shown_url(settings.url)
    try:
        if _write(client, settings, b"railscope_check value=1"):
            message = f"influx.url {url} drops lines; the log has its reason"
            raise SettingsError(message)
    except WriteError as error:
        message = f"cannot write to influx.url {url}: {error}"
        raise SettingsError(message) from error
    finally:
        client.close()
    return f"{url} accepts writes to bucket {settings.bucket}"


def _client(settings: InfluxSettings, secret: str, timeout_seconds: float = TIMEOUT_SECONDS) -> Any:
    from influxdb_client.client.influxdb_client import InfluxDBClient  # noqa: PLC0415 - 30 MiB, only where it is used

    client = InfluxDBClient(
        url=settings.url,
        token=secret,
        org=settings.organisation,
        timeout=round(timeout_seconds * 1000),
    )
    _bound_responses(client, timeout_seconds)
    return client


def _bound_responses(client: Any, timeout_seconds: float) -> None:
    """Limit the server's responses: urllib3 reads without a limit, and its timeout applies to each read."""
    from urllib3.connection import HTTPConnection, HTTPSConnection  # noqa: PLC0415 - as above
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool  # noqa: PLC0415 - as above
    from urllib3.response import HTTPResponse  # noqa: PLC0415 - as above

    def bounded(pool: Any, connection: Any) -> Any:
        class BoundedConnection(connection):  # type: ignore[misc]  # a class that is imported late
            def getresponse(self) -> Any:
                bound_responses(self, MAX_RESPONSE_BYTES, timeout_seconds)
                return super().getresponse()

        return type("BoundedPool", (pool,), {"ConnectionCls": BoundedConnection})

    manager = client.api_client.rest_client.pool_manager
    manager.pool_classes_by_scheme = {
        "http": bounded(HTTPConnectionPool, HTTPConnection),
        "https": bounded(HTTPSConnectionPool, HTTPSConnection),
    }
    send = manager.request

    def request(*arguments: Any, **named: Any) -> HTTPResponse:
        """Return a response in UTF-8, which the client requires: one that is damaged must not hide its status."""
        response = send(*arguments, **named | {"decode_content": False})
        body = io.BytesIO(response.data.decode(errors="replace").encode())
        return HTTPResponse(
            body,
            response.headers,
            response.status,
            reason=response.reason,
            decode_content=False,
            enforce_content_length=False,
        )

    manager.request = request


def _write(client: Any, settings: InfluxSettings, body: bytes) -> int:
    """Write lines, and return the number that the server dropped. Raises WriteError; runs off the loop.

    A wrong token or a missing bucket does not count as a rejection: it may be corrected while the lines wait.
    """
    from influxdb_client.client.exceptions import InfluxDBError  # noqa: PLC0415 - as above
    from influxdb_client.client.write_api import SYNCHRONOUS  # noqa: PLC0415 - as above
    from influxdb_client.rest import ApiException  # noqa: PLC0415 - as above
    from urllib3.exceptions import HTTPError  # noqa: PLC0415 - as above

    try:
        with client.write_api(write_options=SYNCHRONOUS) as api:
            api.write(bucket=settings.bucket, org=settings.organisation, record=body)
    except ApiException as error:
        message, lines = _response_message(error), body.count(b"\n") + 1
        problem = f"{error.status} {printable(_first_line(message))}".strip()
        is_rejected = error.status in _NEVER_ACCEPTED
        if is_rejected and (dropped := _dropped_lines(message)):
            log.warning(
                "sink_samples_rejected",
                sink="influx",
                url=shown_url(settings.url),
                problem=problem[:MAX_PROBLEM_LENGTH],
                entries=min(dropped, lines),
            )
            return min(dropped, lines)
        raise WriteError(
            problem,
            is_rejected=is_rejected,
            retry_seconds=retry_after_seconds(error.retry_after or "", time.time()),
        ) from error
    except (InfluxDBError, HTTPError, OSError) as error:
        raise WriteError(_first_line(str(error)) or type(error).__name__) from error
    return 0


def _response_message(error: Any) -> str:
    """Return the server's message, its whole response without one, or the reason of its status without a response."""
    if not error.body:
        return str(error.reason or "")
    body = error.body if isinstance(error.body, bytes) else str(error.body).encode()
    try:
        found = msgspec.json.decode(body, type=_ErrorDocument)
    except DECODING_ERRORS:
        return body.decode(errors="replace")
    return found.message or found.error or body.decode(errors="replace")


def _dropped_lines(message: str) -> int:
    """Return the number of lines that the server did not write, of a partial write; 0 if it states none."""
    partial = _PARTIAL_WRITE.search(message)
    return int(partial[1]) + len(_UNPARSED_LINE.findall(message)) if partial else 0


def _first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")
