"""An agent's verdicts without its threads: the test decides the order and times of reads."""

from __future__ import annotations

from collections.abc import Collection

from support.clock import NS
from support.machine import FakeHost
from support.reading import ORIGIN, readings

from railscope.catalog import gpu_health as h
from railscope.frame import Event, Frame
from railscope.reading import Absent, Reading
from railscope_agent.gpus.inventory import GpuInventory
from railscope_agent.sampling.source import Source
from railscope_agent.sampling.source_reader import ReadOutcome, SourceReader
from railscope_agent.sampling.status import SourceGrader, SourceState
from railscope_agent.sources.gpu_verdicts import GpuVerdictSource
from railscope_agent.sources.nvidia.bus_state import GpuDeviceSource
from railscope_agent.sources.nvidia.gpu_devices import GpuSource
from railscope_agent.sources.nvidia.nvlink import NvLinkSource
from railscope_agent.sources.nvidia.pcie import GpuPathSource
from railscope_agent.sources.pcie import PcieSource
from railscope_agent.streams.kernel_log import KernelLogStream
from railscope_agent.streams.xid_matcher import XidMatcher

DEVICES = "/sys/bus/pci/devices"
FIELD = "nvml.nvmlDeviceGetFieldValues({},{})"
HEALTH, ACTION = h.GPU_HEALTH.name, h.GPU_ACTION.name
REASON = h.GPU_HEALTH_REASON.name


class VerdictSources:
    """The sources of verdicts, read in turn, and the verdicts after them."""

    def __init__(self, host: FakeHost) -> None:
        self.host = host
        self.book = XidMatcher()
        self.events: list[Event] = []
        self.frame: Frame | None = None
        gpus = GpuInventory()
        self.machine: list[Source] = [
            GpuSource.load(gpus=gpus),
            GpuSource.health(gpus=gpus),
            GpuSource.settings(gpus=gpus),
            GpuDeviceSource(gpus, self.book),
            GpuPathSource(gpus=gpus),
            PcieSource(),
            NvLinkSource.traffic(gpus=gpus),
            NvLinkSource.signal(gpus),
            KernelLogStream(xids=self.book),
        ]
        self.verdicts = GpuVerdictSource(lambda: self.statuses, self.book)
        sources = [*self.machine, self.verdicts]
        self.statuses = {source.name: SourceState(source) for source in sources}
        self._readers = {source.name: SourceReader(source, host, ORIGIN) for source in sources}
        self._grader = SourceGrader()

    def read(self, name: str) -> ReadOutcome:
        """Read one source, as the sampler would."""
        outcome = self._readers[name].run()
        self._grader.record_return(self.statuses[name], outcome, self.host.clock.now())
        return outcome

    def judge(self) -> Frame | None:
        """Read the verdicts alone."""
        self.frame = self.read("gpu_verdict").frame
        if self.frame:
            self.events += self.frame.events
        return self.frame

    def step(self, seconds: float = 5.0, *, silent: Collection[str] = ()) -> Frame | None:
        """Let time pass, read all sources except those in `silent`, and judge."""
        self.host.clock.advance(seconds)
        for source in self.machine:
            if source.name not in silent:
                self.read(source.name)
        return self.judge()

    def steps(self, seconds: float, every: float = 5.0) -> None:
        """Repeat the step for some time."""
        for _ in range(round(seconds / every)):
            self.step(every)

    def hang(self, name: str) -> None:
        """Make the read of a source hang."""
        self._grader.record_timeout(self.statuses[name], 1.0, self.host.clock.now())

    def state(self, gpu: int = 0) -> str:
        """Return the state of a GPU in the latest verdict."""
        return h.GPU_HEALTH.states[self._number(HEALTH, gpu)]

    def action(self, gpu: int = 0) -> str:
        """Return the recommended action for a GPU in the latest verdict."""
        return h.GPU_ACTION.states[self._number(ACTION, gpu)]

    def reasons(self, gpu: int = 0) -> list[str]:
        """Return the current findings against a GPU."""
        return [
            key[1]
            for (name, key), reading in readings(self.frame).items()
            if name == REASON and key[0] == f"GPU-{gpu}" and reading == 1
        ]

    def answer(self, reason: str, gpu: int = 0) -> Reading:
        """Return the latest verdict on one rule."""
        return readings(self.frame)[REASON, (f"GPU-{gpu}", reason)]

    def log(self, sequence: int, text: str, ago_seconds: float = 0) -> None:
        """Add a line of the kernel log, of now or earlier."""
        microseconds = (self.host.clock.now().boot_ns - round(ago_seconds * NS)) // 1000
        self.host.log.waiting.append(f"3,{sequence},{microseconds},-;{text}")

    def _number(self, name: str, gpu: int) -> int:
        reading = readings(self.frame)[name, (f"GPU-{gpu}",)]
        assert not isinstance(reading, Absent), reading
        return reading


def plug(host: FakeHost, address: str, driver: str) -> None:
    """Put a GPU on the PCI bus, with this driver."""
    host.files[f"{DEVICES}/{address}/vendor"] = "0x10de"
    host.files[f"{DEVICES}/{address}/class"] = "0x030200"
    host.links[f"{DEVICES}/{address}/driver"] = f"/sys/bus/pci/drivers/{driver}"
    host.files[f"/sys/bus/pci/drivers/{driver}/new_id"] = ""


def unplug(host: FakeHost, address: str) -> None:
    """Take a GPU off the PCI bus."""
    inside = f"{DEVICES}/{address}/"
    host.files = {path: text for path, text in host.files.items() if not path.startswith(inside)}
    host.links.pop(f"{inside}driver")
