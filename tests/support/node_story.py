"""A fake node that the lines of a story change: driver answers, files, the PCI bus, the kernel log and time.

    node GPUS                   a node with healthy GPUs GPU-0, GPU-1, ... at 0000:01:00.0, 0000:02:00.0, ...
    nvml CALL ANSWER            the answer of nvmlDeviceGetCALL, or of a call with its whole name
    call KEY ANSWER             the answer of a call of another interface, `statistics NIC DRIVER NAME=VALUE ...` for ethtool's
    field GPU FIELD ANSWER      the answer of an NVML field, `165:3` for one of link 3; `gpm` for a GPM metric
    links GPU COUNT STATE TYPE  the NVLinks of a GPU: to a GPU (0) or a switch (2)
    fail GPUS CODE, restore     all calls about some GPUs (or `all`) fail; the answers of before
    cut GPU PROFILE ...         MIG devices; `cut GPU` for none
    run DEVICE PID BYTES [GI CI], stop DEVICE PID   a process on a GPU or MIG device
    plug ADDRESS DRIVER, unplug, unbind   a GPU on the PCI bus
    slot ADDRESS NOW MAX        its link and that of its port, `32x16` for 32 GT/s and 16 lanes
    file PATH TEXT, link PATH TARGET, rm PATH
    log [ago=S] TEXT            a line of the kernel log; `log closed ERRNO`, `log open`
    wait S

An answer is JSON, `!15` for an NVML error or the name of an errno. `nvml CALL -` and `field GPU FIELD -` remove one.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Any

from support.clock import NS
from support.gpus import add_gpus, of_gpu
from support.judging import plug, unplug
from support.machine import FakeHost
from support.mig import cut, disable_mig
from support.pci_bus import add_gpu, set_link

from railscope_agent.host import NvmlError


def answer_of(text: str) -> Any:
    """Return the answer that a word of a story stands for."""
    if text.startswith("!"):
        return NvmlError(int(text[1:]))
    if number := getattr(errno, text, None):
        return OSError(number, os.strerror(number))
    return json.loads(text)


class StoryNode:
    """A fake node and the commands that change it."""

    def __init__(self, gpus: int) -> None:
        self.host = FakeHost()
        self._kept = dict[str, Any]()
        self._records = 0
        add_gpus(self.host, gpus)
        for gpu in range(gpus):
            plug(self.host, f"0000:{gpu + 1:02x}:00.0", "nvidia")

    def change(self, line: str) -> bool:  # noqa: C901, PLR0912, PLR0915 - a case per command
        """Run a command; False if it is not one of a node."""
        word, _, rest = line.partition(" ")
        words, host = rest.split(), self.host
        match word:
            case "nvml":
                name, _, text = rest.partition(" ")
                key = f"nvml.{name}" if name.startswith("nvml") else f"nvml.nvmlDeviceGet{name}"
                self._set(key, text, answer_of)
            case "field" | "gpm":
                call = "nvmlDeviceGetFieldValues" if word == "field" else "nvmlGpmMetricsGet"
                self._set(f"nvml.{call}({words[0]},{words[1]})", words[2], _entry)
            case "call":
                self._set(words[0], " ".join(words[1:]), answer_of)
            case "statistics":
                names, values = zip(*(word.split("=") for word in words[2:]), strict=True)
                found = {"names": list(names), "values": [*map(int, values)]}
                driver = {"driver": words[1], "version": "", "firmware": "", "bus": ""}
                host.calls |= {
                    f"ethtool.driver({words[0]})": driver,
                    f"ethtool.statistics({words[0]})": found,
                }
            case "links":
                self._set_links(*words)
            case "fail":
                self._fail(words[0], int(words[1]))
            case "restore":
                host.calls |= self._kept
            case "cut":
                cut(host, int(words[0]), words[1:])
                if not words[1:]:
                    disable_mig(host, int(words[0]))
            case "run" | "stop":
                self._set_process(*words, is_running=word == "run")
            case "plug":
                plug(host, words[0], words[1])
            case "unplug":
                unplug(host, words[0])
            case "unbind":
                host.links.pop(f"/sys/bus/pci/devices/{words[0]}/driver", None)
            case "slot":
                port = f"0000:00:{words[0][5:7]}.0"
                add_gpu(host, f"pci0000:00/{port}/{words[0]}")
                for end in (port, words[0]):
                    set_link(host, end, words[1], words[2])
            case "file":
                path, _, text = rest.partition(" ")
                is_error = hasattr(errno, text)
                host.files[path] = (
                    answer_of(text) if is_error else text.replace(r"\n", "\n").replace(r"\t", "\t")
                )
            case "link":
                host.links[words[0]] = words[1]
            case "rm":
                for path in [path for path in host.files if f"{path}/".startswith(f"{rest}/")]:
                    del host.files[path]
            case "log":
                self._log(rest)
            case "wait":
                host.clock.advance(float(rest))
            case _:
                return False
        return True

    def _set(self, key: str, text: str, answer: Any) -> None:
        if text == "-":
            self.host.calls.pop(key, None)
        else:
            self.host.calls[key] = answer(text)

    def _set_links(self, gpu: str, count: str, state: str, kind: str = "2") -> None:
        self.change(f"field {gpu} 91 {count}")
        for link in range(int(count)):
            self.change(f"field {gpu} 165:{link} {state}")
            self.change(f"nvml NvLinkRemoteDeviceType({gpu},{link}) {kind}")

    def _set_process(  # noqa: PLR0913 - the words of a line
        self,
        device: str,
        pid: str,
        memory: str = "",
        gpu: str = "",
        compute: str = "",
        *,
        is_running: bool,
    ) -> None:
        key = f"nvml.nvmlDeviceGetComputeRunningProcesses({device})"
        running = [process for process in self.host.calls[key] if process["pid"] != int(pid)]
        if is_running:
            used = json.loads(memory)
            none = 0xFFFF_FFFF
            running.append({
                "pid": int(pid), "usedGpuMemory": used, "gpuInstanceId": int(gpu or none),
                "computeInstanceId": int(compute or none),
            })  # fmt: skip
        self.host.calls[key] = running

    def _fail(self, gpus: str, code: int) -> None:
        calls = self.host.calls
        keys = [key for key in calls if key.startswith("nvml.")]
        if gpus != "all":
            keys = [key for gpu in gpus.split(",") for key in of_gpu(self.host, int(gpu))]
        self._kept = {key: calls[key] for key in keys}
        calls |= dict.fromkeys(keys, NvmlError(code))

    def _log(self, text: str) -> None:
        head, _, rest = text.partition(" ")
        log = self.host.log
        if head == "closed":
            log.closed = log.broken = answer_of(rest)
        elif head == "open":
            log.closed = log.broken = None
        else:
            ago = float(head.removeprefix("ago=")) if head.startswith("ago=") else 0
            boot_ns = self.host.clock.now().boot_ns - round(ago * NS)
            self._records += 1
            line = rest if ago else text
            log.waiting.append(f"3,{self._records},{boot_ns // 1000},-;{line}")


def _entry(text: str) -> Any:
    """Return an entry of a batch: a code and a value."""
    return [int(text[1:]), 0] if text.startswith("!") else [0, json.loads(text)]
