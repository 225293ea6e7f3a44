"""`python -m bench.agent`: cost of the agent, compared with node_exporter where that does the same work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from bench import agent_costs, harness, host_files

DEVICES = 8
VALUES = 3000
ANSWER_SECONDS = 20
FOUR_PER_SECOND = 0.25
CONSECUTIVE = "back to back"

AT_FULL_SPEED = harness.Aim("<=", 0.12)
AT_FOUR_HERTZ = harness.Aim("<=", 0.18)
SHARE_AT_1_HZ = harness.Aim("<=", 0.2, " %")
SHARE_AT_10_HZ = harness.Aim("<=", 1.5, " %")
MEMORY = harness.Aim("<=", 36, " MiB")
MEMORY_OF_ALL = harness.Aim("<=", 45, " MiB")
WAKE_UPS = harness.Aim("<=", 4)
MEBIBYTE = 1 << 20
WIRE = harness.Aim("<=", 0.25)


@dataclass(frozen=True, slots=True)
class AgentBenchLength:
    """Durations of the measurements."""

    fast_scrapes: int
    slow_scrapes: int
    tick_seconds: float
    settle_seconds: float
    push_seconds: float
    read_seconds: float


THOROUGH = AgentBenchLength(
    300, 20, tick_seconds=30, settle_seconds=6, push_seconds=5, read_seconds=4
)
QUICK = AgentBenchLength(
    20, 2, tick_seconds=2, settle_seconds=1.5, push_seconds=0.5, read_seconds=1
)


@harness.benchmark("Agent", full=THOROUGH, quick=QUICK)
def main(report: harness.BenchReport, length: AgentBenchLength, directory: Path) -> None:
    """Measure the agent and print ratios."""
    with host_files.memory_directory() as trees:
        scrape_ratios(report, directory, trees / "scraped", length)
        tick_ratios(report, directory, trees, length)


def scrape_ratios(
    report: harness.BenchReport, directory: Path, root: Path, length: AgentBenchLength
) -> None:
    """Measure a live scrape of 8 RDMA devices by two programs."""
    host_files.write_tree(root, DEVICES)
    schedules = {
        CONSECUTIVE: agent_costs.ScrapeSchedule(length.fast_scrapes, None),
        "4 per second": agent_costs.ScrapeSchedule(length.slow_scrapes, FOUR_PER_SECOND),
        "4 per second, gzip": agent_costs.ScrapeSchedule(
            length.slow_scrapes, FOUR_PER_SECOND, gzip=True
        ),
    }
    found: dict[str, dict[str, agent_costs.ScrapeCost]] = {"agent": {}}
    if report.has_program(agent_costs.NODE_EXPORTER):
        with agent_costs.node_exporter(root, directory) as server:
            found["node_exporter"] = {
                n: agent_costs.measure_scrapes(server, p) for n, p in schedules.items()
            }
    with agent_costs.agent_server(root, directory, FOUR_PER_SECOND) as server:
        for name in ("4 per second", "4 per second, gzip"):
            found["agent"][name] = agent_costs.measure_scrapes(server, schedules[name])
        unread = replace(
            agent_costs.measure_scrapes(server, schedules[CONSECUTIVE]), reads_per_scrape=1.0
        )
    with agent_costs.agent_server(root, directory, agent_costs.AT_ONCE) as server:
        read = agent_costs.read_cost(server, length.read_seconds)
    found["agent"][CONSECUTIVE] = replace(unread, cpu_seconds=unread.cpu_seconds + read)
    for name, cost in found.get("node_exporter", {}).items():
        report.ratio(
            f"CPU per series, agent / node_exporter, {name}",
            found["agent"][name].cpu_per_series / cost.cpu_per_series,
            AT_FULL_SPEED if name == CONSECUTIVE else AT_FOUR_HERTZ,
        )
    for program, costs in found.items():
        for name, cost in costs.items():
            report.figure(f"{program}, {name}", str(cost))
    report.figure(
        f"agent, {CONSECUTIVE}, its parts",
        f"{unread.cpu_seconds * 1e3:.3f} ms per scrape, {read * 1e3:.3f} ms per read of all files",
    )


def tick_ratios(
    report: harness.BenchReport, directory: Path, trees: Path, length: AgentBenchLength
) -> None:
    """Measure a whole tick of about 3,000 values, from reading to the acknowledgement."""
    mixed, files = trees / "mixed", trees / "files"
    answers = directory / "answers.msgpack"
    moving = host_files.write_tree(mixed, DEVICES)
    host_files.write_answers(answers, ANSWER_SECONDS)
    all_files = host_files.write_tree(files, VALUES // host_files.VALUES_PER_PORT)

    def cost(
        root: Path, moved: list[Path], period: float, answers: Path | None
    ) -> agent_costs.TickCost:
        times = length.tick_seconds, length.settle_seconds, length.push_seconds
        return agent_costs.measure_ticks(
            agent_costs.TickPlan(root, directory, moved, period, *times, answers)
        )

    slow, fast = cost(mixed, moving, 1.0, answers), cost(mixed, moving, 0.1, answers)
    real = cost(files, all_files, 1.0, None)
    report.ratio("share of a core, whole tick, 1 Hz", 100 * slow.share_of_core, SHARE_AT_1_HZ)
    report.ratio("share of a core, whole tick, 10 Hz", 100 * fast.share_of_core, SHARE_AT_10_HZ)
    report.ratio("share of a core, every value a file, 1 Hz", 100 * real.share_of_core)
    report.ratio(
        "wire / gzipped text, bytes per value",
        slow.wire_bytes_per_value / slow.text_bytes_per_value,
        WIRE,
    )
    report.ratio("agent resident, every value a file", real.resident_bytes / MEBIBYTE, MEMORY)
    report.ratio("agent resident, whole agent", slow.resident_bytes / MEBIBYTE, MEMORY_OF_ALL)
    report.ratio("wake-ups per tick, 1 Hz", slow.switches_per_tick, WAKE_UPS)
    report.ratio("wake-ups per tick, 10 Hz", fast.switches_per_tick)
    for name, costs in {"1 Hz": slow, "10 Hz": fast, "every value a file, 1 Hz": real}.items():
        report.figure(name, str(costs))
        recorded = f", of which {harness.mebibytes(costs.answers_bytes)} are recorded answers"
        report.figure(f"{name}, memory", f"{costs.memory}{recorded if costs.answers_bytes else ''}")
        wire, text = costs.wire_bytes_per_value, costs.text_bytes_per_value
        report.figure(
            f"{name}, bytes per value", f"{wire:.2f} on the wire, {text:.2f} as gzipped text"
        )
    if slow.calls_per_tick is not None and slow.preads_per_tick is not None:
        calls = f"{slow.calls_per_tick:.0f}, and {slow.preads_per_tick:.0f} preads"
        report.figure("host calls per tick", calls)


if __name__ == "__main__":
    main()
