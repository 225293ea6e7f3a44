"""Descriptive facts: short texts that may be missing, for labels and not for values."""

from __future__ import annotations

from agent.host import Host


def text(host: Host, path: str) -> str:
    """Return the content of a file without surrounding space; empty if it cannot be read."""
    try:
        return host.read(path).decode(errors="replace").strip()
    except OSError:
        return ""


def names(host: Host, path: str) -> list[str]:
    """Return the entries of a directory; none if it cannot be read."""
    try:
        return host.names(path)
    except OSError:
        return []


def network_file(host: Host, path: str) -> str:
    """Return the path of a file of the network stack: /proc/net is a link to /proc/self/net.

    A copied tree, a container or a capture may have only one of the two.
    """
    name = path.partition("/net/")[2]
    for directory in ("/proc/self/net", "/proc/net"):
        try:
            host.read(f"{directory}/{name}")
        except OSError:
            continue
        return f"{directory}/{name}"
    return path


def linked(host: Host, path: str) -> str:
    """Return the last part of a link's target; empty if it does not resolve."""
    try:
        return host.resolve(path).rsplit("/", 1)[-1]
    except OSError:
        return ""


def counted(number: int, what: str) -> str:
    """Return a number of things: `1 GPU`, `2 GPUs`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def known(**facts: str) -> dict[str, str]:
    """Return the facts that are not empty."""
    return {name: value for name, value in facts.items() if value}
