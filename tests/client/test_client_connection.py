"""Connection to a server: every failure is one line that states cause and fix; responses are bounded."""

from __future__ import annotations

import gzip
import socket
from pathlib import Path

import pytest
from support.certificates import self_signed, server_context
from support.scripted_server import json_response, response, scripted_server

from railscope.client.connection import (
    MAX_BODY_BYTES,
    ClientError,
    ReadClient,
    ServerAddress,
    parse_url,
)

PATH = "/api/v1/nodes"


def failure(address: ServerAddress) -> ClientError:
    """The error of a request."""
    with pytest.raises(ClientError) as caught:
        ReadClient(address).get_as(dict[str, int], PATH)
    message = caught.value.message
    assert message.isprintable()
    assert len(message) < 700
    return caught.value


def failure_of(answer: bytes, seconds: float = 10) -> ClientError:
    """The error of a request with this answer."""
    with scripted_server(lambda _: answer) as server:
        return failure(ServerAddress(server.url, timeout_seconds=seconds))


def test_a_document_is_read_with_the_token_of_a_file(tmp_path: Path):
    file = tmp_path / "token"
    file.write_text("secret-1\n")
    file.chmod(0o600)
    with scripted_server(lambda _: json_response({"a": 1})) as server:
        client = ReadClient(ServerAddress(server.url + "/base/", token_file=str(file)))
        assert client.get_as(dict[str, int], PATH, [("stream", "gpu")])[0] == {"a": 1}
    assert server.requests[0].startswith("GET /base/api/v1/nodes?stream=gpu HTTP/1.1\r\n")
    assert "Authorization: Bearer secret-1\r\n" in server.requests[0]


def test_a_closed_port_is_named_with_its_fix():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    found = failure(ServerAddress(f"http://127.0.0.1:{port}"))
    assert found.message == (
        f"reading http://127.0.0.1:{port}{PATH} failed: connection refused;"
        " fix: check that the collector runs, and that --collector is its address"
    )


@pytest.mark.parametrize(
    ("answer", "status", "expected"),
    [
        (json_response({"error": "no"}, "401 Unauthorized"), 401, "--token-file"),
        (json_response({"error": "for operators"}, "403 Forbidden"), 403, "for operators; fix: use a token whose role"),
        (json_response({"error": "gone"}, "404 Not Found"), 404, "base URL of a collector"),
        (response(b"not ready: reading\n", "503 Service Unavailable"), 503, "not ready: reading; fix: wait"),
        (response(b"<html>oops</html>", "502 Bad Gateway"), 502, "status 502; fix: check the proxy"),
        (response(b"", "504 Gateway Timeout"), 504, "status 504; fix: check the proxy"),
        (response(b"", "302 Found", "Location: http://elsewhere/"), 302, "redirects"),
        (response(b"<html>oops</html>", "500 Internal Server Error"), 500, "status 500"),
    ],
)  # fmt: skip
def test_another_status_is_stated_with_the_reason_of_the_server(
    answer: bytes, status: int, expected: str
):
    found = failure_of(answer)
    assert found.status == status
    assert expected in found.message
    assert "<html>" not in found.message


def test_control_characters_of_a_server_are_visible():
    found = failure_of(json_response({"error": "\x1b[2Jred\u202e\n" + 5000 * "x"}, "403 Forbidden"))
    assert r"\x1b[2Jred\u202e\n" in found.message


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"<html>", "invalid JSON"),
        (b'{"a": "\x1b"}', "invalid JSON"),
        (b'{"a": "text"}', "expected `int`, got `str`"),
        (b"[" * 100_000, "invalid JSON"),
        (b'{"a": "\xff"}', "invalid JSON"),
    ],
)
def test_content_of_another_form_is_invalid_json(body: bytes, expected: str):
    assert expected.lower() in failure_of(response(body)).message.lower()


def test_answers_are_bounded_in_size_and_time():
    endless = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999999\r\n\r\n" + bytes(
        MAX_BODY_BYTES + (1 << 20)
    )
    assert "too large" in failure_of(endless).message
    bomb = response(gzip.compress(bytes(MAX_BODY_BYTES + 1)), "200 OK", "Content-Encoding: gzip")
    assert "too large" in failure_of(bomb).message
    assert "damaged gzip" in failure_of(response(b"xx", "200 OK", "Content-Encoding: gzip")).message
    with scripted_server(lambda _: b"") as server:
        server.silent.set()
        found = failure(ServerAddress(server.url, timeout_seconds=0.2))
    assert "no complete answer within 0.2 s" in found.message


def test_what_is_not_http_and_what_ends_early_is_reported():
    assert "no HTTP answer" in failure_of(b"SSH-2.0-OpenSSH_9.2\r\n").message
    assert "no HTTP answer" in failure_of(b"").message
    assert failure_of(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{").message


def test_tls_is_verified(tmp_path: Path):
    certificate, key = self_signed(tmp_path)
    with scripted_server(
        lambda _: json_response({"a": 1}), server_context(certificate, key)
    ) as server:
        assert "the certificate is not trusted" in failure(ServerAddress(server.url)).message
        client = ReadClient(ServerAddress(server.url, ca_file=str(certificate)))
        assert client.get_as(dict[str, int], PATH)[0] == {"a": 1}
        # Schemes of URLs have no case: a token is never sent without TLS to HTTPS://HOST.
        capitals = server.url.replace("https", "HTTPS")
        client = ReadClient(ServerAddress(capitals, ca_file=str(certificate)))
        assert client.get_as(dict[str, int], PATH)[0] == {"a": 1}
        plain = server.url.replace("https", "http")
        assert "https:// if it uses TLS" in failure(ServerAddress(plain)).message
    with scripted_server(lambda _: json_response({})) as server:
        found = failure(ServerAddress(server.url.replace("http", "https"))).message
    assert "TLS failed" in found


@pytest.mark.parametrize(
    "url",
    ["", "collector:9470", "ftp://host", "http://", "http://host:port", "http://host:99999", "http://host:0",
     "http://ho st", "http://h\x1b[2J", "http://user:secret@host", "http://host/?a=b", "http://[::1"],
)  # fmt: skip
def test_an_invalid_url_is_rejected(url: str):
    with pytest.raises(ClientError, match=r"invalid URL .*expected http://HOST:PORT") as caught:
        parse_url(url)
    assert "secret" not in caught.value.message
    assert caught.value.message.isprintable()


def test_a_token_file_must_be_readable_by_its_owner_only_and_contain_one_token(tmp_path: Path):
    file = tmp_path / "token"

    def message() -> str:
        with pytest.raises(ClientError) as caught:
            ReadClient(ServerAddress("http://127.0.0.1:1", token_file=str(file)))
        return caught.value.message

    assert message().startswith(
        f"cannot read --token-file {file}: No such file or directory; fix: "
    )
    file.write_text("secret")
    file.chmod(0o644)
    assert message().endswith(
        f"mode 0644: expected a file that other users cannot read; fix: chmod 600 {file}"
    )
    file.chmod(0o640)
    assert ReadClient(ServerAddress("http://127.0.0.1:1", token_file=str(file)))
    for content in ("", "two\nlines", "\x1b", "x" * 5000):
        file.write_text(content)
        assert "expected one token" in message()


def test_files_that_cannot_be_used_are_named(tmp_path: Path):
    missing = str(tmp_path / "missing.pem")
    for options, named in (
        ({"ca_file": missing}, "--ca-file"),
        ({"certificate_file": missing}, "--certificate-file"),
    ):
        with pytest.raises(ClientError, match=f"cannot use {named} {missing}"):
            ReadClient(ServerAddress("https://127.0.0.1:1", **options))
        with pytest.raises(ClientError, match="expected https://"):
            ReadClient(ServerAddress("http://127.0.0.1:1", **options))
