r"""Commands of stories that assemble a host, for runners about the readings of a node.

file PATH TEXT              a file, with ~ for blanks in its path: a line, or lines with \n and \t; @NAME+... are files of the directory `tables`; an error such as
                            EIO is raised
files DIR NAME=TEXT ...     files of a directory; underscores in texts are blanks
link PATH TARGET            a symbolic link
rm PATTERN ...              removes the files, links and calls that match
deny DIR                    a directory that may not be listed
call NAME JSON              answer of a call; +JSON changes some keys of it; an error such as EIO is raised
wait SECONDS                time passes
gpu PATH, nic PATH, device PATH CLASS   a device on the PCI bus with the bridges above it; the last part is its address
lanes ADDRESS NOW MOST      PCIe link of a device: 32x16 is 32 GT/s with 16 lanes
unplug ADDRESS              removes a device from the bus
card INTERFACE DRIVER       a NIC with MTU, carrier and firmware; `answers INTERFACE` makes it answer all requests for settings
counts INTERFACE NAME=N ... its driver statistics
leaf INTERFACE NAME=TEXT ...  the switch port that an interface receives LLDP frames of, if not port Ethernet1/1 of leaf-1
"""

from __future__ import annotations

import codecs
import errno
import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from support import nics, pci_bus
from support.machine import FakeHost

CLASSES = {"nvme": pci_bus.NVME, "gpu": pci_bus.GPU, "ethernet": pci_bus.ETHERNET}

LEAF = {
    "chassis": "aa:bb:cc:00:00:01", "port": "Ethernet1/1", "port_description": "to gpu-1 rail 0", "system": "leaf-1",
    "system_description": "a switch", "management_address": "10.0.0.1", "capabilities": ["bridge", "router"], "ttl_seconds": 120,
    "maximum_frame_bytes": 9216, "port_vlan": 100,
}  # fmt: skip
_LISTS = ("other_chassis", "pfc_priorities", "dscp_priorities")


class StoryHost(FakeHost):
    """A host with directories that may not be listed."""

    denied = ""

    def names(self, path: str) -> list[str]:
        if self.denied and path.startswith(self.denied):
            raise PermissionError(errno.EACCES, "Permission denied")
        return super().names(path)


def options(words: list[str]) -> dict[str, str]:
    """Return the words of the form name=text; underscores of the texts are blanks."""
    texts = {name: text for name, equals, text in (w.partition("=") for w in words) if equals}
    return {name: codecs.decode(text, "unicode_escape") if "\\x" in text else text for name, text in texts.items()}  # fmt: skip


def error(text: str) -> OSError | None:
    """Return the error of this name, such as EIO."""
    number = getattr(errno, text, None)
    return OSError(number, text) if isinstance(number, int) else None


def content(text: str, tables: Path) -> str | OSError:
    """Return the content of a file."""
    if text.startswith("@"):
        return "".join((tables / name).read_text() for name in text[1:].split("+"))
    if failure := error(text):
        return failure
    if "\\n" not in text:
        return f"{text}\n" if text else ""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def answer(text: str, before: Any) -> Any:
    """Return the answer of a call."""
    if text.startswith("+"):
        return before | json.loads(text[1:])
    return error(text) or json.loads(text)


def change(  # noqa: C901, PLR0912 - one case each
    host: StoryHost, line: str, tables: Path
) -> bool:
    """Change the host as a line says; false if it is none of these commands."""
    command, *words = line.split()
    rest, given = line.partition(" ")[2], options(words)
    match command, words:
        case "file", [path, *_]:
            host.files[path.replace("~", " ")] = content(rest[len(path) + 1 :], tables)
        case "files", [directory, *_]:
            for name, text in given.items():
                blanks = text if text.startswith("@") else text.replace("_", " ")
                host.files[f"{directory}/{name}"] = content(blanks, tables)
        case "link", [path, target]:
            host.links[path] = target
        case "rm", _:
            for stored in (host.files, host.links, host.calls):
                for key in [key for key in stored if any(fnmatch(key, each) for each in words)]:
                    del stored[key]
        case "deny", [path]:
            host.denied = path
        case "call", [name, *_]:
            host.calls[name] = answer(rest[len(name) + 1 :], host.calls.get(name))
        case "wait", [seconds]:
            host.clock.advance(float(seconds))
        case "gpu", [path, *_]:
            pci_bus.add_gpu(host, path, given.get("numa", "0"))
        case "nic", [path, *_]:
            model = (pci_bus.MELLANOX, given.pop("model", pci_bus.CONNECTX7))
            given["numa_node"] = given.pop("numa", "0")
            pci_bus.add_nic(host, path, given.pop("name", ""), model=model, **given)  # type: ignore[arg-type]
        case "device", [path, class_, *_]:
            pci_bus.add_device(host, path, CLASSES.get(class_, class_), **given)
        case "lanes", [address, now, most]:
            pci_bus.set_link(host, address, now, most)
        case "unplug", _:
            for address in words:
                pci_bus.remove_device(host, address)
        case "card", [interface, driver, *more]:
            nics.add_nic(host, interface, driver, *more)
        case "answers", [interface]:
            nics.add_everything(host, interface)
        case "counts", [interface, *_]:
            pairs = [word.split("=") for word in words[1:]]
            host.calls[f"ethtool.statistics({interface})"] = {
                "names": [name.replace("~", " ") for name, _ in pairs],
                "values": [int(value) for _, value in pairs],
            }
        case "leaf", [interface, *_]:
            several = {name: given.pop(name).split("+") for name in list(given) if name in _LISTS}
            host.calls["lldp.neighbours()"] = {interface: {**LEAF, **given, **several}}
        case _:
            return False
    return True
