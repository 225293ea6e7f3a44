"""Parts of a recording that identify no person and no site; everything else is replaced.

The rule is an allow-list. A token is retained if it is a number, a term of a known format, or a
device name that the kernel builds from such terms and numbers (`ens1f0np0`, `mlx5_0`). Answers that
consist of driver counters, such as the counter files of an RDMA port, are retained whole.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_BDF = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
PCI_ADDRESS = (
    rf"(?<![0-9a-z:.]){_BDF}(?![0-9a-z:])|(?<=PCI:)[0-9a-f]{{4,8}}:[0-9a-f]{{2}}:[0-9a-f]{{2}}"
)
_WHOLE = {
    "files": re.compile(
        rf"/sys/(?:bus/pci/devices/{_BDF}|devices/pci[^\s]*/{_BDF}|class/(?:net|infiniband)/[^/]+/device)"
        r"/(?:class|vendor|device|subsystem_\w+|revision|(?:current|max)_link_\w+|numa_node"
        r"|local_cpu\w+|aer_\w+|sriov_\w+|enable)"
        r"|/sys/class/infiniband/[^/]+/(?:fw_ver|hca_type|node_type|board_id|hw_rev|tc/.*"
        r"|ports/\d+/(?:(?:hw_)?counters/.*|state|phys_state|rate|link_layer|gid_attrs/types/\d+))"
        r"|/sys/class/net/[^/]+/(?:statistics/\w+|carrier\w*|mtu|speed|duplex|operstate|type|flags"
        r"|dev_port|phys_port_name|ecn/.*|qos/\w+)"
        r"|/proc/(?:stat|meminfo|vmstat|loadavg|uptime|pressure/\w+)"
        r"|/proc(?:/self)?/net/(?:snmp6?|netstat|softnet_stat|sockstat6?|stat/\w+)",
        re.IGNORECASE,
    ),
    "names": re.compile(
        r"/sys/class/infiniband/[^/]+/ports/\d+/(?:hw_)?counters|/sys/bus/pci/devices"
    ),
    "links": re.compile(rf"/sys/bus/pci/devices/{_BDF}(?:/driver)?"),
    "calls": re.compile(
        r"nvml\.(?!nvmlDeviceGetSerial|nvmlDeviceGetPlatformInfo|nvmlVgpuInstanceGetVmID).*"
        r"|ethtool\.(?:statistics|driver).*"
        r"|netlink\.(?:dcb|fec|link_modes|link_state|pause|rings|module|rdma_statistics"
        r"|standard_statistics).*"
    ),
}
_COUNTER_FILE = re.compile(r"(?<=counters/)[\w.]+$")
_RUNS = re.compile(r"[^\W\d_]+")
_FIXED = re.compile(
    rf"\d+|0x[0-9a-f]+|x[0-9a-f]{{7}}|{_BDF}|[0-9a-f]{{4,8}}(?::[0-9a-f]{{2}}){{2}}|pci[0-9a-f]{{4}}",
    re.IGNORECASE,
)
MAX_LETTERS_TOKEN = 5
"""Maximum length of a token of single letters and digits, such as `p0` or `3g`: it identifies nothing."""


def is_whole(section: str, key: str) -> bool:
    """True if the answer for a key contains only what drivers and the kernel define."""
    return _WHOLE[section].fullmatch(key) is not None


def counter_file(path: str) -> re.Match[str] | None:
    """Match of a counter file's name at the end of a path; drivers define these names."""
    return _COUNTER_FILE.search(path)


def is_harmless(token: str) -> bool:
    """True if a token is a number, a PCI address, a term of a format, or composed of those."""
    if _FIXED.fullmatch(token):
        return True
    runs = _RUNS.findall(token.lower())
    if all(len(run) == 1 for run in runs):
        return len(token) <= MAX_LETTERS_TOKEN
    return all(len(run) == 1 or run in _words() for run in runs)


@cache
def _words() -> frozenset[str]:
    text = files("agent.host").joinpath("harmless_words.txt").read_text(encoding="ascii")
    lines = (line for line in text.splitlines() if not line.startswith("#"))
    return frozenset(word for line in lines for word in line.split())
