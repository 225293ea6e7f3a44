"""The mark by which an agent knows that an answer to its frames is from its collector.

A wrong address, a proxy or a captive portal may answer anything with any status. What such a server
answers must not empty a spool. The mark is a keyed hash: the token of the node is the key, and what is
hashed are the status, the request and the answer. So no answer can be used for another request, and
a server that does not know this protocol cannot make one. Against a server on the path that means
harm it does not help where the token itself is readable: use TLS.
"""

from __future__ import annotations

import hashlib
import hmac
from http import HTTPStatus

ANSWER_HEADER = "Railscope-Answer"
DECISIONS = frozenset({200, 400, 409, 413, 422})
"""The answers that decide about frames, and that are marked."""
_PURPOSE = b"railscope answer 1\n"


def answer_mark(token: str, status: int, request: bytes, answer: bytes) -> str:
    """The mark of an answer; `token` is empty where the client shows a certificate.

    A body that is too large is not read: of such a request only its length is known.
    """
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return unread_mark(token, status, len(request), answer)
    return _mark(token, status, hashlib.sha256(request).digest(), answer)


def unread_mark(token: str, status: int, length: int, answer: bytes) -> str:
    """The mark of an answer to a body of which only the length is known."""
    return _mark(token, status, b"%d" % length, answer)


def is_marked(mark: str, token: str, status: int, request: bytes, answer: bytes) -> bool:
    """True if the mark is that of this answer."""
    expected = answer_mark(token, status, request, answer)
    return hmac.compare_digest(mark.encode(errors="replace"), expected.encode())


def _mark(token: str, status: int, request: bytes, answer: bytes) -> str:
    content = _PURPOSE + b"%d\n%d\n" % (status, len(request)) + request
    key = token.encode(errors="surrogateescape")
    return hmac.new(key, content + hashlib.sha256(answer).digest(), hashlib.sha256).hexdigest()
