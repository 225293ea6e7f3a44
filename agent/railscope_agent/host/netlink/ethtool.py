"""ethtool over generic netlink: pause frames, FEC, rings, link modes, link state, modules.

Source: linux UAPI ethtool_netlink.h, ethtool.h (FEC bits, extended link states), genetlink.h;
Documentation/networking/ethtool-netlink.rst. Kernels before 5.6 lack the family, later ones lack
single commands: EOPNOTSUPP, as from a driver that does not implement a command. Counters that the
driver does not maintain are omitted. Reading a module needs CAP_NET_ADMIN.

Names of the reasons for a down link are those that the command ethtool prints: `enum
ethtool_link_ext_state` of linux UAPI ethtool.h, and the substates of each state that has them.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable

from railscope.capture import Json
from railscope.reading import known_speed
from railscope_agent.host.module_eeprom.pages import HALF_BYTES, HalfPage
from railscope_agent.host.netlink import messages
from railscope_agent.host.netlink.connection import NetlinkConnection

_EXTENDED_STATES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Autoneg",
        (
            "No partner detected", "Ack not received", "Next page exchange failed",
            "No partner detected during force mode", "FEC mismatch during override", "No HCD",
        ),
    ),
    (
        "Link training failure",
        (
            "KR frame lock not acquired", "KR link inhibit timeout",
            "KR Link partner did not set receiver ready", "Remote side is not ready yet",
        ),
    ),
    (
        "Logical mismatch",
        (
            "PCS did not acquire block lock", "PCS did not acquire AM lock",
            "PCS did not get align_status", "FC FEC is not locked", "RS FEC is not locked",
        ),
    ),
    (
        "Bad signal integrity",
        (
            "Large number of physical errors", "Unsupported rate", "Serdes reference clock lost",
            "Serdes ALOS",
        ),
    ),
    ("No cable", ()),
    ("Cable issue", ("Unsupported cable", "Cable test failure")),
    ("EEPROM issue", ()),
    ("Calibration failure", ()),
    ("Power budget exceeded", ()),
    ("Overheat", ()),
    ("Module", ("CMIS module is not in ModuleReady state",)),
)  # fmt: skip
"""States by their number; substates of each are numbered from 1."""


AttributeValues = dict[int, bytes]
_NOT_COUNTED = (errno.EINVAL, errno.EOPNOTSUPP)

_CONTROLLER, _GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 16, 3, 1, 2
_GENERIC = struct.Struct("=BBxx")  # struct genlmsghdr: command, version
_HEADER, _HEADER_NAME, _HEADER_FLAGS = 1, 2, 3
_FLAG_STATISTICS = 4
_LINK_MODES_GET, _LINK_STATE_GET, _RINGS_GET, _PAUSE_GET, _FEC_GET = 4, 6, 15, 21, 29
_MODULE_EEPROM_GET, _STATS_GET = 31, 32
_BITSET_NO_MASK, _BITSET_BITS, _BIT_NAME, _BIT_VALUE = 1, 3, 2, 3

# ETHTOOL_A_PAUSE_*, ETHTOOL_A_PAUSE_STAT_*
_PAUSE_FLAGS = {2: "autonegotiation", 3: "receive", 4: "transmit"}
_PAUSE_STATISTICS, _PAUSE_COUNTERS = 5, {3: "receive_frames", 2: "transmit_frames"}
# ETHTOOL_A_FEC_*, ETHTOOL_A_FEC_STAT_*, ETHTOOL_LINK_MODE_FEC_*_BIT
_FEC_MODES, _FEC_FLAGS, _FEC_ACTIVE, _FEC_STATISTICS = 2, {3: "automatic"}, 4, 5
_FEC_COUNTERS = {2: "corrected_blocks", 3: "uncorrectable_blocks", 4: "corrected_bits"}
_FEC_BITS = {49: "None", 50: "RS", 51: "BASER", 74: "LLRS"}
# ETHTOOL_A_RINGS_*
_RINGS = {6: "receive", 2: "receive_limit", 9: "transmit", 5: "transmit_limit"}
# ETHTOOL_A_LINKMODES_*; DUPLEX_*
_MODES_FLAGS, _MODES_OURS, _MODES_PEER = {2: "autonegotiation"}, 3, 4
_SPEED, _DUPLEX, _LANES = 5, 6, 9
_DUPLEXES = {0: "half", 1: "full"}
# ETHTOOL_A_LINKSTATE_*
_STATE_FLAGS, _STATE_COUNTERS = {2: "up"}, {7: "down_events"}
_EXTENDED_STATE, _EXTENDED_SUBSTATE = 5, 6
# ETHTOOL_A_MODULE_EEPROM_*
_OFFSET, _LENGTH, _PAGE, _BANK, _I2C_ADDRESS, _DATA = 2, 3, 4, 5, 6, 7

# ETHTOOL_A_STATS_*, ETHTOOL_A_STATS_GRP_*, enum ethtool_stats, ethtool_stats_eth_phy and the like;
# names as in net/ethtool/stats.c, stats_std_names and others.
_GROUPS, _GROUP, _GROUP_ID, _GROUP_STATISTIC = 3, 4, 2, 4
_ALL_GROUPS = messages.nest(
    _GROUPS,
    messages.attribute(1, b""),  # ETHTOOL_A_BITSET_NOMASK
    messages.attribute(2, struct.pack("=I", 4)),  # ETHTOOL_A_BITSET_SIZE
    messages.attribute(4, struct.pack("=I", 0b1111)),  # ETHTOOL_A_BITSET_VALUE
)
_STATISTICS: dict[int, tuple[str, ...]] = {
    0: ("SymbolErrorDuringCarrier",),
    1: (
        "FramesTransmittedOK", "SingleCollisionFrames", "MultipleCollisionFrames",
        "FramesReceivedOK", "FrameCheckSequenceErrors", "AlignmentErrors", "OctetsTransmittedOK",
        "FramesWithDeferredXmissions", "LateCollisions", "FramesAbortedDueToXSColls",
        "FramesLostDueToIntMACXmitError", "CarrierSenseErrors", "OctetsReceivedOK",
        "FramesLostDueToIntMACRcvError", "MulticastFramesXmittedOK", "BroadcastFramesXmittedOK",
        "FramesWithExcessiveDeferral", "MulticastFramesReceivedOK", "BroadcastFramesReceivedOK",
        "InRangeLengthErrors", "OutOfRangeLengthField", "FrameTooLongErrors",
    ),
    2: ("MACControlFramesTransmitted", "MACControlFramesReceived", "UnsupportedOpcodesReceived"),
    3: (
        "etherStatsUndersizePkts", "etherStatsOversizePkts", "etherStatsFragments",
        "etherStatsJabbers",
    ),
}  # fmt: skip


class EthtoolFamily:
    """Commands of ethtool for one interface each. All raise OSError."""

    def __init__(self, connection: Callable[[], NetlinkConnection]) -> None:
        self._connection = connection
        self._family: int | None = None

    def pause(self, interface: str) -> Json:
        """Settings of pause frames (802.3x, not per priority) and their counts."""
        answer = self._request(_PAUSE_GET, interface, statistics=True)
        counted = _nested_attributes(answer, _PAUSE_STATISTICS)
        return _flags(answer, _PAUSE_FLAGS) | {"statistics": _numbers(counted, _PAUSE_COUNTERS)}

    def fec(self, interface: str) -> Json:
        """Forward error correction. Statistics are lists: the total, then each lane if counted."""
        answer = self._request(_FEC_GET, interface, statistics=True)
        counted = _nested_attributes(answer, _FEC_STATISTICS)
        return _flags(answer, _FEC_FLAGS) | {
            "modes": [name for name, is_set in _bits(answer.get(_FEC_MODES, b"")) if is_set],
            "active": _FEC_BITS.get(messages.integer(answer.get(_FEC_ACTIVE, b"\0")), ""),
            "statistics": {
                name: _list(counted[kind])
                for kind, name in _FEC_COUNTERS.items()
                if counted.get(kind)
            },
        }

    def standard_statistics(self, interface: str) -> Json:
        """Counters of the standard groups (eth-phy, eth-mac, eth-ctrl, rmon), where supported."""
        body = self._exchange(_STATS_GET, interface, _ALL_GROUPS)
        counted: dict[str, int] = {}
        for kind, group in messages.attributes(body):
            if kind != _GROUP:
                continue
            members = list(messages.attributes(group))
            names = _STATISTICS.get(messages.integer(dict(members).get(_GROUP_ID, b"\xff")), ())
            for member, raw in members:
                if member == _GROUP_STATISTIC:
                    counted |= {
                        names[number]: messages.integer(value)
                        for number, value in messages.attributes(raw)
                        # A newer kernel may have more statistics in a group.
                        if number < len(names)
                    }
        return {"statistics": counted}

    def rings(self, interface: str) -> Json:
        """Current and maximum number of descriptors of the rings."""
        return _numbers(self._request(_RINGS_GET, interface), _RINGS)

    def link_modes(self, interface: str) -> Json:
        """Speed, duplex and lanes, and the link modes of both ends.

        Modes are limited to media modes (400000baseCR4/Full); the other bits that the kernel lists
        beside them (ports, pause, FEC, autonegotiation) are returned by other functions.
        """
        attributes = self._request(_LINK_MODES_GET, interface)
        local, peer = _modes(attributes, _MODES_OURS), _modes(attributes, _MODES_PEER)
        answer: dict[str, Json] = {
            "supported": [name for name, _ in local],
            "advertised": [name for name, is_set in local if is_set],
            "peer": [name for name, is_set in peer if is_set],
            **_flags(attributes, _MODES_FLAGS),
        }
        speed = messages.integer(attributes.get(_SPEED, b"\0"))
        if isinstance(known_speed(speed), int):
            answer["speed_megabits"] = speed
        if _DUPLEX in attributes and messages.integer(attributes[_DUPLEX]) in _DUPLEXES:
            answer["duplex"] = _DUPLEXES[messages.integer(attributes[_DUPLEX])]
        if lanes := messages.integer(attributes.get(_LANES, b"\0")):
            answer["lanes"] = lanes
        return answer

    def link_state(self, interface: str) -> Json:
        """Link state, and the reason for a down link if the driver reports it."""
        attributes = self._request(_LINK_STATE_GET, interface, statistics=True)
        answer: dict[str, Json] = _flags(attributes, _STATE_FLAGS) | _numbers(
            attributes, _STATE_COUNTERS
        )
        if _EXTENDED_STATE in attributes:
            state = messages.integer(attributes[_EXTENDED_STATE])
            state_names = dict(enumerate(_EXTENDED_STATES))
            answer["extended_state"], substates = state_names.get(state, (f"unknown ({state})", ()))
            if _EXTENDED_SUBSTATE in attributes:
                substate = messages.integer(attributes[_EXTENDED_SUBSTATE])
                names = dict(enumerate(substates, 1))
                answer["extended_substate"] = names.get(substate, f"unknown ({substate})")
        return answer

    def module_half(self, interface: str, half: HalfPage) -> bytes:
        """Half a page of the EEPROM of the module that is plugged into an interface."""
        answer = self._request(
            _MODULE_EEPROM_GET,
            interface,
            messages.attribute(_OFFSET, struct.pack("=I", half.offset)),
            messages.attribute(_LENGTH, struct.pack("=I", HALF_BYTES)),
            messages.attribute(_PAGE, bytes([half.page])),
            messages.attribute(_BANK, bytes([half.bank])),
            messages.attribute(_I2C_ADDRESS, bytes([half.address])),
        )
        return answer.get(_DATA, b"")

    def _request(
        self, command: int, interface: str, *more: bytes, statistics: bool = False
    ) -> AttributeValues:
        flags = _FLAG_STATISTICS if statistics else 0
        try:
            body = self._exchange(command, interface, *more, flags=flags)
        except OSError as error:
            if not statistics or error.errno not in _NOT_COUNTED:
                raise
            # Kernels before 5.10 (link state: before 6.2) reject the flag.
            body = self._exchange(command, interface, *more)
        return dict(messages.attributes(body))

    def _exchange(self, command: int, interface: str, *more: bytes, flags: int = 0) -> bytes:
        header = messages.nest(
            _HEADER,
            messages.interface_attribute(_HEADER_NAME, interface),
            messages.attribute(_HEADER_FLAGS, struct.pack("=I", flags)),
        )
        connection = self._connection()
        # The kernel assigns the number of the family when it registers; it stays the same until the next
        # boot.
        if self._family is None:
            self._family = _family(connection)
        return _generic(connection, self._family, command, header, *more)


def _family(connection: NetlinkConnection) -> int:
    name = messages.text_attribute(_FAMILY_NAME, "ethtool")
    try:
        answer = dict(messages.attributes(_generic(connection, _CONTROLLER, _GET_FAMILY, name)))
    except FileNotFoundError:
        missing = "this kernel does not support ethtool over netlink: it is older than 5.6"
        raise OSError(errno.EOPNOTSUPP, missing) from None
    return messages.integer(answer.get(_FAMILY_ID, b""))


def _generic(
    connection: NetlinkConnection, family: int, command: int, *request_attributes: bytes
) -> bytes:
    body = connection.request(family, _GENERIC.pack(command, 1) + b"".join(request_attributes))
    messages.unpack(_GENERIC, body)
    return body[_GENERIC.size :]


def _nested_attributes(values: AttributeValues, kind: int) -> AttributeValues:
    return dict(messages.attributes(values.get(kind, b"")))


def _numbers(values: AttributeValues, names: dict[int, str]) -> dict[str, Json]:
    return {name: messages.integer(values[kind]) for kind, name in names.items() if kind in values}


def _flags(values: AttributeValues, names: dict[int, str]) -> dict[str, Json]:
    return {name: bool(number) for name, number in _numbers(values, names).items()}


def _list(raw: bytes) -> list[int]:
    if len(raw) % 8:
        messages.raise_inconsistent(f"list of 64-bit counters of {len(raw)} bytes")
    return list(struct.unpack(f"={len(raw) // 8}Q", raw))


def _modes(values: AttributeValues, kind: int) -> list[tuple[str, bool]]:
    return [(name, is_set) for name, is_set in _bits(values.get(kind, b"")) if "base" in name]


def _bits(bitset: bytes) -> list[tuple[str, bool]]:
    """Name of each bit of a verbose bitset, and its value.

    For a set with a mask, the bits of the mask are listed; for one without, the set bits.
    """
    inside = dict(messages.attributes(bitset))
    bits = [
        dict(messages.attributes(entry))
        for _, entry in messages.attributes(inside.get(_BITSET_BITS, b""))
    ]
    no_mask = _BITSET_NO_MASK in inside
    return [(messages.text(bit.get(_BIT_NAME, b"")), no_mask or _BIT_VALUE in bit) for bit in bits]
