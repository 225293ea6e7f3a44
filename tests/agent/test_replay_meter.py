"""The cost of a replay is measured separately and does not count against the budget of the agent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.clock import NS, ManualClock
from support.metric_samples import sample, samples

from railscope.capture import Capture, CaptureMetadata, CaptureMoment, write_capture
from railscope.exposition import TextFormat
from railscope_agent.config import AgentSettings, BudgetSettings, MetricsSettings
from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.sampling.budget_keeper import BudgetKeeper
from railscope_agent.sampling.meter import ProcessMeter, ReplayMeter, create_meter, measure_memory
from railscope_agent.service import Agent
from railscope_simulator import NodeSpec, simulate

MIB = 1 << 20
ABOUT = CaptureMetadata("n1", "b", 0, 0, 60 * NS, "test")


def replayed(files: dict[str, str]) -> RecordedHost:
    capture = Capture(ABOUT, (CaptureMoment(0, files=files),))
    return RecordedHost(capture, ManualClock(), lambda: 0)


def test_a_live_machine_has_no_replay() -> None:
    assert type(create_meter(LiveHost())) is ProcessMeter
    assert type(create_meter(replayed({}))) is ReplayMeter


def test_the_processor_time_of_answers_is_charged_to_their_thread() -> None:
    host = replayed({"/proc/a": "1"})
    meter = ReplayMeter(host)
    seen: list[int] = []

    def ask() -> None:
        host.cost.charge(lambda: sum(range(200_000)))
        seen.append(host.cost.thread_cpu_ns())

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert seen[0] > 0
    assert host.cost.thread_cpu_ns() == 0
    assert host.cost.cpu_ns() == seen[0]
    assert meter.process_cpu_ns() <= time.process_time_ns() - seen[0]
    host.read("/proc/a")
    assert host.cost.cpu_ns() > seen[0]


def test_an_answer_that_fails_is_charged_too() -> None:
    host = replayed({})
    with pytest.raises(FileNotFoundError):
        host.call("nvml", "nvmlDeviceGetCount")
    assert host.cost.cpu_ns() > 0


def test_the_memory_of_a_capture_is_not_memory_of_the_agent() -> None:
    host = measure_memory(lambda: replayed({f"/{n}": f"{n}" * 2_000 for n in range(20_000)}))
    assert host.cost.resident_bytes >= 100 * MIB
    keeper = BudgetKeeper(BudgetSettings(), (), ReplayMeter(host))
    own = keeper.meter.resident_bytes()
    assert own <= ProcessMeter().resident_bytes() - 99 * MIB


def test_the_metrics_of_a_replay_show_its_cost_apart() -> None:
    agent = Agent(
        AgentSettings(node="n1", metrics=STANDARD), replayed({"/proc/loadavg": "1 1 1 1/1 1\n"})
    )
    asyncio.run(agent.once())
    page = samples(agent.endpoint.text(TextFormat.PROMETHEUS))
    assert page[sample("railscope_agent_replay_cpu_seconds_total")] > 0
    assert page[sample("railscope_agent_replay_resident_memory_bytes")] == 0


STANDARD = MetricsSettings(detail="standard")
LONG_RUN = """
import asyncio, sys
from pathlib import Path
from railscope_agent.commands.run import running_host
from railscope_agent.config import AgentSettings
from railscope_agent.service import Agent
from railscope.exposition import TextFormat

async def main():
    host, node = running_host(Path("/"), Path(sys.argv[1]))
    agent = Agent(AgentSettings(), host, node)
    for _ in range(int(sys.argv[2])):
        await agent.once()
        for form in TextFormat:
            agent.endpoint.text(form)
            agent.endpoint.dcgm_text(form)
    print(agent.keeper.meter.resident_bytes(), host.cost.resident_bytes)

asyncio.run(main())
"""


def test_an_agent_of_eight_gpus_and_ten_nics_keeps_its_memory_bound(tmp_path: Path) -> None:
    """With default settings, for any request and any size of the capture."""
    capture = simulate(NodeSpec("n1"), 24, 1.0)
    write_capture(tmp_path / "capture", capture.about, capture.moments)
    command = [sys.executable, "-c", LONG_RUN, str(tmp_path / "capture"), "12"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    own, replay = map(int, done.stdout.splitlines()[-1].split())
    assert own <= AgentSettings().budget.memory_bytes
    assert replay >= 5 * MIB, "the capture is not the agent's"
