"""`agent check` as text: lines that need attention, with their remedies, and the exit status.

    host                          two GPUs, an RDMA device and its network interface; without it, the node has nothing
    file PATH TEXT, call KEY JSON, log RECORD   what the node answers; `later PATH TEXT` is that of the second read
    deny PATH-OR-KEY, fail KEY-OR-GPU CODE TEXT a file or call is denied; a call fails with an error of NVML
    nic NUMBER [DRIVER]           a NIC that a driver owns, or none; `namespace PATH`: one without an interface here
    collector [STATUS]            a collector, and its answer if it does not accept the agent

Below `check [BEGINNING]`: lines that begin with BROKEN or DENIED, or with the text, and `exit STATUS`.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from aiohttp import web
from support import pci_bus
from support.collector import ScriptedCollector
from support.gpus import add_gpus, of_gpu
from support.machine import DENIED, FakeHost
from support.rdma_nics import add_nic
from support.shipping import link_to
from support.stories import Story

from railscope_agent.commands.check import check, read_twice
from railscope_agent.config import AgentSettings
from railscope_agent.host import NvmlError
from railscope_agent.service import Agent

DEVICE = "/sys/devices/pci0000:3a/0000:3b:00.0"


class CheckedNode:
    """A node, and the settings of its agent."""

    def __init__(self) -> None:
        self.host = FakeHost()
        self.later: dict[str, str] = {}
        self.settings: dict[str, Any] = {}
        self.collector = ScriptedCollector()
        self.servers = AsyncExitStack()

    async def play(self, command: str) -> list[str]:
        """Run a command."""
        name, *arguments = command.split(" ", 2)
        return await getattr(self, f"on_{name}")(*arguments) or []

    async def on_host(self) -> None:
        add_gpus(self.host, 2)
        add_nic(self.host)
        self.host.files |= {"/sys/class/net/eth0/carrier": "1", f"{DEVICE}/vendor": "0x15b3"}
        self.host.links["/sys/class/net/eth0/device"] = DEVICE
        driver = {"driver": "mlx5_core", "version": "", "firmware": "28.39", "bus": ""}
        self.host.calls |= {
            "ethtool.driver(eth0)": driver,
            "ethtool.statistics(eth0)": {"names": ["rx_bytes_phy"], "values": [1]},
            "lldp.neighbours()": {"eth0": {"chassis": "leaf", "port": "1", "ttl_seconds": 120}},
        }

    async def on_file(self, path: str, text: str) -> None:
        self.host.files[path] = text

    async def on_later(self, path: str, text: str) -> None:
        self.later[path] = text

    async def on_call(self, key: str, text: str) -> None:
        self.host.calls[key] = json.loads(text)

    async def on_log(self, *words: str) -> None:
        self.host.log.waiting.append(" ".join(words))

    async def on_deny(self, key: str) -> None:
        (self.host.files if key.startswith("/") else self.host.calls)[key] = DENIED

    async def on_fail(self, key: str, text: str) -> None:
        code, _, message = text.partition(" ")
        found = of_gpu(self.host, int(key)) if key.isdigit() else [key]
        self.host.calls |= dict.fromkeys(found, NvmlError(int(code), message))

    async def on_nic(self, number: str, driver: str = "") -> None:
        path = f"pci0000:0{number}/0000:0{number}:01.0/0000:{number}1:00.0"
        pci_bus.add_nic(self.host, path, f"mlx5_{number}" if number != "0" else "")
        if driver:
            self.host.links[f"/sys/devices/{path}/driver"] = f"/sys/bus/pci/drivers/{driver}"
            self.host.files[f"/sys/bus/pci/drivers/{driver}/bind"] = ""

    async def on_namespace(self, path: str) -> None:
        model = (pci_bus.MELLANOX, pci_bus.CONNECTX7)
        pci_bus.add_device(self.host, path, pci_bus.ETHERNET, model)

    async def on_collector(self, *statuses: str) -> None:
        await self.servers.enter_async_context(self.collector.serving())
        answers = [web.json_response({"error": "because"}, status=int(s)) for s in statuses]
        self.collector.script.extend(answers)
        self.settings["collector"] = link_to(self.collector)

    async def on_check(self, *words: str) -> list[str]:
        lines: list[str] = []
        beginnings = " ".join(words) or ("BROKEN", "DENIED")
        agent = Agent(AgentSettings(**self.settings), self.host, "node-1")
        reads = [partial(read_twice, seconds=10)] if self.later else []
        checking = asyncio.ensure_future(check(agent, lines.append, *reads))
        if self.later:
            await self.host.clock.asleep(1)
            self.host.files |= self.later
            self.host.clock.advance(10)
        exit_status = int(not await checking)
        assert "".join(lines).isprintable()
        shown, is_shown = list[str](), False
        for line in lines:
            text = " ".join(line.split())
            is_shown = is_shown if line.startswith(" ") else text.startswith(beginnings)
            if is_shown:
                shown.append(text.replace(f"127.0.0.1:{self.collector.port}", "COLLECTOR"))
        return [*shown, f"exit {exit_status}"]


def test_story(story: Story) -> None:
    with asyncio.Runner() as runner:
        node = CheckedNode()
        try:
            story.play(lambda command: runner.run(node.play(command)))
        finally:
            runner.run(node.servers.aclose())
