"""The kubelet's list of pods, over HTTPS with a token, or over HTTP on loopback only."""

from __future__ import annotations

import errno
import http.client
import ssl
from pathlib import Path
from urllib.parse import urlsplit

from railscope import http_responses, listen_address

MAX_BYTES = 64 << 20
PATH = "/pods"
_OK = 200
_DENIED = {401, 403}


def read_pod_list(
    url: str, token_file: str, ca_file: str, timeout: float, max_bytes: int = MAX_BYTES
) -> bytes:
    """Answer to GET /pods. Raises OSError; PermissionError if the kubelet denies the request."""
    parts = urlsplit(url)
    connection = _connection(url, ca_file, timeout)
    http_responses.bound_responses(connection, max_bytes, timeout)
    failure = f"cannot read the pod list from {url}"
    headers = {"Accept": "application/json", "Connection": "close"}
    if token_file:  # a token is never sent unencrypted
        if parts.scheme != "https":
            raise OSError(errno.EINVAL, f"invalid URL {url} with a token: expected https://")
        token = Path(token_file).read_bytes().strip().decode(errors="replace")
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request("GET", parts.path.rstrip("/") or PATH, headers=headers)
        answer = connection.getresponse()
        if answer.status in _DENIED:
            message = f"{failure}: status {answer.status}; fix: grant the token get on nodes/proxy"
            raise PermissionError(errno.EACCES, message)
        # One byte more than allowed shows that the answer is too long, without reading all of it.
        content = answer.read(max_bytes + 1)
    # HTTPException has subclasses that are OSErrors as well, and ValueError includes those of ssl: OSErrors
    # keep their number.
    except OSError:
        raise
    except http.client.HTTPException as error:
        raise OSError(errno.EBADMSG, f"{failure}: {type(error).__name__}: {error}") from error
    except ValueError as error:
        raise OSError(errno.EBADMSG, f"{failure}: {error}") from error
    finally:
        connection.close()
    if answer.status != _OK:
        raise OSError(errno.EPROTO, f"{failure}: status {answer.status}")
    if len(content) > max_bytes:
        raise OSError(
            errno.EMSGSIZE, f"{failure}: response too long: expected at most {max_bytes} bytes"
        )
    return content


def _connection(url: str, ca_file: str, timeout: float) -> http.client.HTTPConnection:
    """A connection to an authenticated peer: by its certificate, or because it is on loopback."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=ca_file or None)
        return http.client.HTTPSConnection(host, parts.port, timeout=timeout, context=context)
    if parts.scheme != "http" or not listen_address.is_loopback(host):
        message = (
            f"invalid URL {url}: expected https://NODE:10250/pods, or http:// "
            "and a loopback address"
        )
        raise OSError(errno.EINVAL, message)
    return http.client.HTTPConnection(host, parts.port, timeout=timeout)
