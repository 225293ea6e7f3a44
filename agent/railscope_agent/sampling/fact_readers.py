"""Readers of descriptive facts: short texts that may be missing, for labels and not for values."""

from __future__ import annotations

from railscope.catalog.declare import MARKS
from railscope_agent.host import Host, Json, NvmlError


def call_nvml(host: Host, function: str, *arguments: int | str) -> Json:
    """Return the answer of an NVML call, or None if the call fails or returns a number that stands for no value."""
    try:
        return without_mark(host.call("nvml", function, *arguments))
    except (NvmlError, OSError):
        return None


def without_mark(answer: Json) -> Json:
    """Return an answer, or None for a number that stands for no value (nvml.h, NVML_DEVICE_ARCH_UNKNOWN)."""
    return None if isinstance(answer, int) and answer in MARKS else answer


def read_text(host: Host, path: str) -> str:
    """Return the content of a file without surrounding space; empty if it cannot be read."""
    try:
        return host.read(path).decode(errors="replace").strip()
    except OSError:
        return ""


def list_names(host: Host, path: str) -> list[str]:
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


def read_link_name(host: Host, path: str) -> str:
    """Return the last part of a link's target; empty if it does not resolve."""
    try:
        return host.resolve(path).rsplit("/", 1)[-1]
    except OSError:
        return ""


def nonempty_facts(**facts: str) -> dict[str, str]:
    """Return the facts that are not empty."""
    return {name: value for name, value in facts.items() if value}
