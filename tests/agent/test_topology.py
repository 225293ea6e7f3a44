"""Roles, rails and paths of a node's devices, as stories.

    set topology.NAME=JSON      a setting
    at X KIND ... [numa=N]      devices at the PCIe switch x of a host bridge; `x.1` is a switch below it, `lone.N` a root port of its own;
                                KIND is gpu, nic (mlx5_0, mlx5_1, ... in this order), dpu, eth, or a name of a nic
    bridge NIC                  makes a NIC the management function of an NVSwitch
    route INTERFACE METRIC ...  default routes
    guest FILE [flat|domains]   the virtual machine of a captured NCCL topology file, with its switches, on one bus, or with a domain
                                for each device; `nccl FILE` sets that file
    scan                        rails of NICs (and planes), NICs and rails of GPUs, roles, and what contradicts, where it differs
    ports                       interfaces that are ports
    why NAME ...                reasons of devices
    show [FROM [TO]]            lines of `railscope agent topology`: all, or from one that begins with FROM to one that begins with TO
    again                       the agent starts again
    driver N                    NVML with GPUs; `links GPU PEER ...` their NVLinks, each to a GPU or to a `switch`; `down GPU LINK STATE`
    run ARGUMENT ... | TEXT ... railscope agent topology; lines with any of the texts; $CASES are the captures of tests/captures

All other commands are those of `support.host_words`.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
from click.testing import CliRunner
from support import cases, pci_bus
from support.gpus import add_gpus
from support.host_words import StoryHost, change, options
from support.shared import capture_path
from support.stories import Story

from railscope.cli import root as railscope
from railscope.settings import SettingsError
from railscope_agent.config import TopologySettings
from railscope_agent.topology.network import NetworkScanner
from railscope_agent.topology.network_device import NodeNetwork
from railscope_agent.topology.rail_rules import parse_rail_rules
from railscope_agent.topology.topology_report import show_topology

MANAGEMENT = b"\x82\x1a\x00ConnectX-7 \x90\x20\x00V2\x06SW_MNGV3\x04abcd".decode("latin-1")
ROUTES = "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n"
NIC_CLASSES, AMD_GPU = ("0x0200", "0x0207"), "0x1200"


class TopologyStory:
    """A host, and the roles that its devices have."""

    def __init__(self) -> None:
        self._host = StoryHost()
        self._settings: dict[str, object] = {}
        self._places: dict[str, int] = {}
        self._nics = 0
        self._scanner: NetworkScanner | None = None
        self._network = NodeNetwork()
        self._shown: list[str] = []

    def run(self, line: str) -> list[str]:  # noqa: C901, PLR0912 - one case each
        command, *words = line.split()
        match command, words:
            case "set", [setting, *more]:
                name, _, text = " ".join([setting, *more]).partition("=")
                self._settings[name.removeprefix("topology.")] = msgspec.json.decode(text)
            case "at", [switch, *kinds]:
                for kind in [kind for kind in kinds if "=" not in kind]:
                    self._add(switch, kind, **options(kinds))
            case "bridge", [nic]:
                place = self._host.links[f"/sys/class/infiniband/{nic}/device"]
                self._host.files[f"{place}/vpd"] = MANAGEMENT
            case "route", _:
                routes = [f"{each} 00000000 0100A8C0 0003 0 0 {words[n + 1]} 00000000 0 0 0\n" for n, each in enumerate(words) if n % 2 == 0]  # fmt: skip
                self._host.files["/proc/net/route"] = ROUTES + "".join(routes)
            case "guest", [file, *form]:
                self._guest(file, *form)
            case "nccl", [file]:
                self._settings["nccl_file"] = str(capture_path(f"topology/{file}.xml"))
            case "scan", []:
                return self._scan()
            case "ports", []:
                return [" ".join(self._network.ports)]
            case "why", names:
                of_name = {name: each for each in self._network.devices for name in each.names}
                return [f"{name}: {of_name[name].reason}" for name in names]
            case "show", _:
                return self._show(*words)
            case "again", []:
                self._scanner = None
            case "driver", [count]:
                add_gpus(self._host, int(count))
            case "links", [gpu, *peers]:
                self._link(gpu, peers)
            case "down", [gpu, link, state]:
                self._host.calls[f"nvml.nvmlDeviceGetNvLinkState({gpu},{link})"] = int(state)
                self._host.calls[f"nvml.nvmlDeviceGetFieldValues({gpu},165:{link})"] = [
                    0,
                    int(state),
                ]
            case "run", _:
                end = words.index("|")
                arguments = [word.replace("$CASES", str(cases.CASES)) for word in words[:end]]
                result = CliRunner().invoke(railscope, ["agent", "topology", *arguments])
                lines = result.output.expandtabs(1).splitlines()
                shown = [line for line in lines if any(text in line for text in words[end + 1 :])]
                return [*shown, f"status {result.exit_code}"]
            case _:
                assert change(self._host, line, Path()), f"unknown command: {line}"
        return []

    def _add(self, switch: str, kind: str, numa: str = "0", names: str = "") -> None:
        """Add a device at a switch: the letter is that of its domain."""
        number = self._places[switch] = self._places.get(switch, -1) + 1
        letter, _, inner = switch.partition(".")
        domain = "00ff" if letter == "lone" else f"{ord(letter):04x}"
        if letter == "lone":
            path = f"pci{domain}:{inner}/{domain}:{inner}:01.0/{domain}:{inner}:00.{number}"
        else:
            top = f"pci{domain}:00/{domain}:00:01.0/{domain}:01:00.0/{domain}:02"
            path = f"{top}:{number:02x}.0/{domain}:{0x10 + number:02x}:00.0"
            if inner:
                below = f"{domain}:0{3 + int(inner)}:00.0/{domain}:0{5 + int(inner)}"
                bus = 0x10 + 0x10 * int(inner) + number
                path = f"{top}:1{inner}.0/{below}:{number:02x}.0/{domain}:{bus:02x}:00.0"
        if kind == "gpu":
            pci_bus.add_gpu(self._host, path, numa)
            return
        model = pci_bus.BLUEFIELD3 if kind == "dpu" else pci_bus.CONNECTX7
        layer = "InfiniBand" if kind == "nic" else "Ethernet"
        name = kind
        if kind in {"nic", "dpu"}:
            name, self._nics = f"mlx5_{self._nics}", self._nics + 1
        interface = names or ("" if kind in {"nic", "dpu"} else kind)
        rdma = name if name.startswith("mlx5") else ""
        nic = (pci_bus.MELLANOX, model)
        pci_bus.add_nic(self._host, path, rdma, interface=interface, numa_node=numa, model=nic, link_layer=layer)  # fmt: skip

    def _guest(self, file: str, form: str = "") -> None:
        tree = ET.parse(capture_path(f"topology/{file}.xml"))  # noqa: S314 - a file of ours
        above: dict[ET.Element, list[str]] = {}
        for cpu in tree.getroot().findall("cpu"):
            for number, element in enumerate(cpu.iter("pci")):
                switches, address = above.get(element, []), element.attrib["busid"]
                below = element.findall("pci")
                above |= {key: [*switches, address] for key in below}
                if not below:
                    self._add_guest(element, switches, cpu.attrib["numaid"], number, form)

    def _add_guest(
        self, element: ET.Element, switches: list[str], cpu: str, number: int, form: str
    ) -> None:
        address, class_ = element.attrib["busid"], element.get("class", "")
        ports = [port for each in switches for port in (each, f"{each[:-4]}{number:02x}.0")]
        path = {"": f"pci0000:{int(cpu):02x}/{'/'.join([*ports, address])}", "flat": f"pci0000:00/{address}", "domains": f"pci{address[:7]}/{address}"}[form]  # fmt: skip
        vendor = "0x1002" if class_.startswith(AMD_GPU) else pci_bus.NVIDIA
        model = (element.get("vendor", vendor), element.get("device", "0x0001"))
        pci_bus.add_device(
            self._host, path, class_, model, numa_node="-1" if form == "flat" else cpu
        )
        if class_.startswith(NIC_CLASSES):
            pci_bus.name_rdma(self._host, f"mlx5_{self._nics}", address)
            self._nics += 1

    def _link(self, gpu: str, peers: list[str]) -> None:
        calls = self._host.calls
        calls[f"nvml.nvmlDeviceGetFieldValues({gpu},91)"] = [0, len(peers)]
        for link, peer in enumerate(peers):
            calls[f"nvml.nvmlDeviceGetNvLinkState({gpu},{link})"] = 1
            kind = 2 if peer == "switch" else 0
            calls[f"nvml.nvmlDeviceGetNvLinkRemoteDeviceType({gpu},{link})"] = kind
            if peer != "switch":
                bus_id = calls[f"nvml.nvmlDeviceGetPciInfo({peer})"]["busId"]
                calls[f"nvml.nvmlDeviceGetNvLinkRemotePciInfo({gpu},{link})"] = {"busId": bus_id}

    def _topology(self) -> TopologySettings:
        return msgspec.convert(self._settings, TopologySettings)

    def _scan(self) -> list[str]:
        try:
            self._scanner = self._scanner or NetworkScanner(parse_rail_rules(self._topology()))
        except SettingsError as error:
            return [str(error)]
        self._host.clock.advance(60)
        self._network = network = self._scanner.scan(self._host)
        named = {each.address: each.names[0] for each in network.devices}
        rails = [f"{each.names[0]}={each.rail}" + f".{each.plane}" * bool(each.plane) for each in network.devices if each.rail is not None]  # fmt: skip
        gpus = [f"{network.gpu_rails.get(gpu.address, '-')}={named.get(network.nic_by_gpu.get(gpu.address, ''), '-')}" for gpu in network.gpus]  # fmt: skip
        roles = dict.fromkeys(each.role for each in network.devices if each.role != "compute")
        lines = [f"rails {' '.join(rails) or 'none'}", f"gpus {' '.join(gpus) or 'none'}"]
        for role in roles:
            members = [each.names[0] for each in network.devices if each.role == role]
            lines.append(f"{role or 'no role'} {' '.join(members)}")
        if parts := [f"{'+'.join(each.names[:-1])}: {each.role}" for each in network.subfunctions]:
            lines.append(f"parts of functions {', '.join(parts)}")
        lines += [f"problem {each}" for each in network.problems]
        lines += [f"unused {' '.join(network.unused)}"] if network.unused else []
        changed = [line for line in lines if line not in self._shown]
        self._shown = lines
        return changed

    def _show(self, first: str = "", last: str = "") -> list[str]:
        text, is_right = show_topology(self._host, self._topology(), "text")
        lines = [line for line in text.expandtabs(1).splitlines() if line.strip()]
        heads = [line.strip() for line in lines]
        start = next((n for n, head in enumerate(heads) if head.startswith(first)), 0)
        below = range(start, len(heads))
        end = next((n for n in below if last and heads[n].startswith(last)), len(heads))
        return [*lines[start : end + 1], *([] if is_right else ["invalid"])]


def test_topology(story: Story) -> None:
    story.play(TopologyStory().run)
