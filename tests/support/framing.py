"""Requests that state the length of their body in a way that two servers may read differently."""

from __future__ import annotations

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"
FRAMINGS = {
    "length and chunked": b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "odd case": b"tRANSFER-eNCODING: Chunked\r\ncontent-LENGTH: 3\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 0\r\nContent-Length: 30\r\n\r\n",
    "list of lengths": b"Content-Length: 0, 30\r\n\r\n",
    "negative length": b"Content-Length: -5\r\n\r\n",
    "length with a sign": b"Content-Length: +5\r\n\r\n",
    "length in hexadecimal": b"Content-Length: 0x5\r\n\r\n",
    "space before the colon": b"Content-Length : 5\r\n\r\n",
}
"""The end of a header block after its Host, by defect."""
