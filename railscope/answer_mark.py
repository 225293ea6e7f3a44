"""Response mark: proof to an agent that a response to its frames is from its collector.

A wrong address, a proxy or a captive portal may return any response with any status. Such a response must
not empty a spool. The mark is an HMAC with the node's token as key over status, request and response. So
no response can be reused for another request, and a server that does not implement this protocol cannot
create one. It gives no protection from an attacker on the network path who can read the token itself: use
TLS.
"""

from __future__ import annotations

import hashlib
import hmac
from http import HTTPStatus

ANSWER_HEADER = "Railscope-Answer"
DECISIONS = frozenset({200, 400, 409, 413, 422})
"""Response statuses that decide about frames; these responses are marked."""
_PURPOSE = b"railscope answer 1\n"


def answer_mark(token: str, status: int, request: bytes, answer: bytes) -> str:
    """Return the mark of a response; `token` is empty where the client uses a certificate.

    A body that is too large is not read: of such a request only the length is covered.
    """
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return unread_mark(token, status, len(request), answer)
    return _mark(token, status, hashlib.sha256(request).digest(), answer)


def unread_mark(token: str, status: int, length: int, answer: bytes) -> str:
    """Return the mark of a response to a body of which only the length was read."""
    return _mark(token, status, b"%d" % length, answer)


def is_marked(mark: str, token: str, status: int, request: bytes, answer: bytes) -> bool:
    """True if the mark is valid for this response."""
    expected = answer_mark(token, status, request, answer)
    return hmac.compare_digest(mark.encode(errors="replace"), expected.encode())


def _mark(token: str, status: int, request: bytes, answer: bytes) -> str:
    content = _PURPOSE + b"%d\n%d\n" % (status, len(request)) + request
    key = token.encode(errors="surrogateescape")
    return hmac.new(key, content + hashlib.sha256(answer).digest(), hashlib.sha256).hexdigest()
