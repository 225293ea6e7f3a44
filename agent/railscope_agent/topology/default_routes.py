"""Interfaces that carry the default route of a node: they are for its management.

Formats: torvalds/linux net/ipv4/fib_trie.c, fib_route_seq_show, and net/ipv6/route.c, rt6_info_route.
"""

from __future__ import annotations

from railscope_agent.host import Host
from railscope_agent.sampling.fact_readers import list_names, network_file, read_text

_NET = "/sys/class/net"
_LOWER = "lower_"
_UP, _REJECT = 0x1, 0x200
"""RTF_UP and RTF_REJECT of linux/route.h."""
_NOWHERE = "00000000"
_FIELDS, _FIELDS_6 = 8, 10


def default_interfaces(host: Host) -> set[str]:
    """Return the interface of the best default route, and its lower ones (bond, VLAN, bridge)."""
    interfaces: set[str] = set()
    waiting = [_default_ipv4_interface(host) or _default_ipv6_interface(host)]
    while waiting:
        interface = waiting.pop()
        # Each one once: an interface may be below several others.
        if interface and interface not in interfaces:
            interfaces.add(interface)
            below = (
                name for name in list_names(host, f"{_NET}/{interface}") if name.startswith(_LOWER)
            )
            waiting += [name.removeprefix(_LOWER) for name in below]
    return interfaces


def _default_ipv4_interface(host: Host) -> str:
    best = []
    for line in read_text(host, network_file(host, "/proc/net/route")).splitlines()[1:]:
        fields = line.split()
        if len(fields) < _FIELDS:
            continue
        interface, target, _, flags, _, _, metric, mask = fields[:_FIELDS]
        # Both: a network that begins at 0.0.0.0 with a longer mask is not the default route.
        if target == mask == _NOWHERE and int(flags, 16) & _UP and not int(flags, 16) & _REJECT:
            best.append((int(metric), interface))
    return min(best, default=(0, ""))[1]


def _default_ipv6_interface(host: Host) -> str:
    best = []
    for line in read_text(host, network_file(host, "/proc/net/ipv6_route")).splitlines():
        fields = line.split()
        if len(fields) < _FIELDS_6:
            continue
        length, metric, flags, interface = fields[1], fields[5], int(fields[8], 16), fields[9]
        # The kernel has a default route that rejects packets on `lo` where there is no other.
        if length == "00" and flags & _UP and not flags & _REJECT and interface != "lo":
            best.append((int(metric, 16), interface))
    return min(best, default=(0, ""))[1]
