"""Objects of a switch for snmpd: a generator of recorded tables, and the program that answers for `pass_persist`.

The file has one object per line: OID, type and value as snmpd's `pass` defines them. It is read again when it has
changed.
"""

from __future__ import annotations

import bisect
import os
import sys
from pathlib import Path

Oid = tuple[int, ...]
IF, IFX = "1.3.6.1.2.1.2.2.1", "1.3.6.1.2.1.31.1.1.1"
LLDP = "1.0.8802.1.1.2.1"
PFC, CISCO_PFC = "1.3.111.2.802.1.1.21.1.1.1", "1.3.6.1.4.1.9.9.813.1.2.1"
QUEUES, MELLANOX = "1.3.6.1.4.1.9.9.580.1.5.5.1.4", "1.3.6.1.4.1.33049.15.1.1.1"
HH3C = "1.3.6.1.4.1.25506.2"
ROOTS = (
    "1.3.6.1.2.1.2",
    "1.3.6.1.2.1.31",
    "1.0.8802",
    "1.3.111",
    "1.3.6.1.4.1.9",
    "1.3.6.1.4.1.33049",
    "1.3.6.1.4.1.25506",
)
SYSTEM = "1.3.6.1.2.1.1"
_KINDS = {
    "2": "integer", "4": "string", "6": "objectid", "65": "counter", "66": "gauge", "67": "timeticks",
    "70": "counter64",
}  # fmt: skip
"""Types of snmprec files as snmpd names them; `x` behind them marks a value in hexadecimal."""


def mac(text: str) -> str:
    """Return a MAC address as snmpd reads it."""
    return text.replace(":", " ")


class SwitchObjects:
    """Tables of one switch; tests change them, and write them again."""

    def __init__(self, ports: int = 2) -> None:
        self.objects: dict[str, tuple[str, str]] = {}
        for index in range(1, ports + 1):
            self.add_port(index, f"Ethernet{4 * (index - 1)}")

    def add(self, oid: str, kind: str, value: object) -> None:
        self.objects[oid] = kind, str(value)

    @classmethod
    def from_records(cls, text: str) -> SwitchObjects:
        """Return the objects of an snmprec file; those of the system group, if any, in place of snmpd's own."""
        found = cls(ports=0)
        for line in text.splitlines():
            oid, kind, value = line.split("|", 2)
            if kind.endswith("x"):
                found.add(oid, "octet", bytes.fromhex(value).hex(" "))
            elif kind in _KINDS:
                found.add(oid, _KINDS[kind], value)
        return found

    def add_port(self, index: int, name: str, kind: int = 6) -> None:
        """Add an interface whose counters differ by its index."""
        for column, of, value in (
            (2, "string", f"etp{index}"), (3, "integer", kind), (6, "octet", f"02 00 00 00 00 {index:02x}"),
            (7, "integer", 1), (8, "integer", 1), (13, "counter", 130 + index), (14, "counter", 140 + index),
            (19, "counter", 190 + index), (20, "counter", 200 + index),
        ):  # fmt: skip
            self.add(f"{IF}.{column}.{index}", of, value)
        for column, of, value in (
            (1, "string", name), (6, "counter64", 10**18 + index), (7, "counter64", 700), (8, "counter64", 80),
            (9, "counter64", 9), (10, "counter64", (1 << 64) - 2), (11, "counter64", 1100), (12, "counter64", 120),
            (13, "counter64", 13), (15, "gauge", 400_000), (18, "string", f"TO-SERVER-{index}"),
        ):  # fmt: skip
            self.add(f"{IFX}.{column}.{index}", of, value)

    def add_priorities(self, ports: int) -> None:
        """Add the PFC frames of CISCO-PFC-EXT-MIB: sent 1000 + port * 10 + priority, received one more than twice."""
        for index in range(1, ports + 1):
            for priority in range(8):
                sent = 1000 + index * 10 + priority
                self.add(f"{CISCO_PFC}.2.{index}.{priority}", "counter64", sent)
                self.add(f"{CISCO_PFC}.3.{index}.{priority}", "counter64", 2 * sent + 1)

    def add_queues(self, ports: int) -> None:
        """Add the statistics of eight egress queues of each port."""
        for index in range(1, ports + 1):
            for queue in range(1, 9):
                for statistic in (1, 2, 5, 6):
                    value = index * 1000 + queue * 10 + statistic
                    self.add(f"{QUEUES}.{index}.2.{queue}.{statistic}", "counter64", value)

    def add_comware(self, ports: int, first: int = 0) -> None:
        """Add sysObjectID of H3C, and the counts of `add_queues` in the tables of Comware, with queue 0 as `first`."""
        self.add(f"{SYSTEM}.2.0", "objectid", f"{HH3C.rpartition('.')[0]}.1.4242")
        self.add(f"{SYSTEM}.3.0", "timeticks", 8_640_000)
        self.add(f"{SYSTEM}.5.0", "string", "leaf-07")
        for index in range(1, ports + 1):
            for queue in range(8):
                for column, statistic in ((1, 1), (3, 2), (2, 5), (6, 6)):
                    value = index * 1000 + (queue + 1) * 10 + statistic
                    self.add(
                        f"{HH3C}.65.1.1.2.1.1.{column}.{index}.{queue + first}", "counter64", value
                    )

    def add_neighbour(self, port: int, system: str, address: str, time_mark: int = 0) -> None:
        """Add a neighbour that announces a MAC address as its chassis and its port."""
        row = f"{time_mark}.{port}.1"
        self.add(f"{LLDP}.3.2.0", "octet", "02 aa 00 00 00 07")
        self.add(f"{LLDP}.3.1.0", "integer", 4)
        for column, of, value in (
            (4, "integer", 4), (5, "octet", mac(address)), (6, "integer", 3), (7, "octet", mac(address)),
            (8, "string", "eth"), (9, "string", system),
        ):  # fmt: skip
            self.add(f"{LLDP}.4.1.1.{column}.{row}", of, value)

    @property
    def roots(self) -> tuple[str, ...]:
        """Subtrees that are answered by these objects, and not by snmpd itself."""
        has_system = any(oid.startswith(f"{SYSTEM}.") for oid in self.objects)
        return (*ROOTS, SYSTEM) if has_system else ROOTS

    def write(self, path: Path) -> None:
        """Write the file in one step."""
        lines = [f"{oid} {kind} {value}\n" for oid, (kind, value) in self.objects.items()]
        partial = path.with_suffix(".partial")
        partial.write_text("".join(lines))
        partial.rename(path)


def parse_oid(text: str) -> Oid:
    """Return an OID with or without a leading dot."""
    return tuple(map(int, text.strip().strip(".").split(".")))


class Answers:
    """The objects of the file, as of its last change."""

    def __init__(self, path: str) -> None:
        self.path, self.changed_ns = path, -1
        self.objects: dict[Oid, str] = {}
        self.order: list[Oid] = []

    def find(self, command: str, oid: Oid) -> str:
        changed_ns = os.stat(self.path).st_mtime_ns  # noqa: PTH116 - this program imports little
        if changed_ns != self.changed_ns:
            lines = [line.split(" ", 2) for line in Path(self.path).read_text().splitlines()]
            self.objects = {parse_oid(o): f".{o}\n{kind}\n{value}" for o, kind, value in lines}
            self.order, self.changed_ns = sorted(self.objects), changed_ns
        if command == "getnext":
            place = bisect.bisect_right(self.order, oid)
            return self.objects[self.order[place]] if place < len(self.order) else "NONE"
        return self.objects.get(oid, "NONE")


def main() -> None:
    """Answer snmpd's questions until it closes the pipe."""
    answers = Answers(sys.argv[1])
    for line in sys.stdin:
        command = line.strip()
        if command == "PING":
            print("PONG", flush=True)  # noqa: T201 - the protocol
        elif command in {"get", "getnext"}:
            print(answers.find(command, parse_oid(sys.stdin.readline())), flush=True)  # noqa: T201
        else:
            return


if __name__ == "__main__":
    main()
