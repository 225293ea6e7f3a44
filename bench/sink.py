"""A collector that only acknowledges, for measuring agents. Its own cost does not matter."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

from bench.processes import HOST
from railscope.answer_mark import ANSWER_HEADER, answer_mark
from railscope.envelope_reader import unpack
from railscope.wire import BYTES_PER_VALUE

_MAX_BYTES = 64 << 20


@dataclass(slots=True)
class Received:
    """Sum of the received data."""

    wire_bytes: int = 0
    values: int = 0


class Sink:
    """Listens on a free port until the `with` block ends, and sums the received data."""

    def __init__(self) -> None:
        self.received = Received()
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                frames = 0
                for batch in unpack(body, _MAX_BYTES).batches:
                    frames += batch.rows
                    received.values += batch.rows * len(batch.base) // BYTES_PER_VALUE
                received.wire_bytes += len(body)
                answer = b'{"accepted_frames":%d,"duplicate_frames":0}' % frames
                token = self.headers.get("Authorization", "").partition(" ")[2]
                self.send_response(200)
                self.send_header(ANSWER_HEADER, answer_mark(token, 200, body, answer))
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer((HOST, 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://{HOST}:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        """Start to listen."""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
