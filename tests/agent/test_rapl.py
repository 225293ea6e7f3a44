"""Energy of the processors: readings, counter wraps and resets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support.clock import START, ManualClock
from support.machine import DENIED, FakeHost
from support.reading import ORIGIN, numbers, read_once, readings
from support.trees import server_tree

from railscope.reading import Absent
from railscope_agent.host.live_host import LiveHost
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source import longest_period_seconds
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.sources.rapl import MAX_WATTS, POWERCAP_ROOT, EnergyCounter, RaplSource

ENERGY, LIMIT = "railscope_rapl_energy_joules_total", "railscope_rapl_power_limit_watts"
RANGE = 262_143_328_850
SECOND = 10**9


def add_zone(host: FakeHost, zone: str, name: str, energy: object, range_uj: int = RANGE) -> None:
    host.files[f"{POWERCAP_ROOT}/{zone}/name"] = f"{name}\n"
    host.files[f"{POWERCAP_ROOT}/{zone}/energy_uj"] = energy
    host.files[f"{POWERCAP_ROOT}/{zone}/max_energy_range_uj"] = f"{range_uj}\n"


@pytest.fixture
def server() -> FakeHost:
    """Two packages with their memory, and the memory-mapped twin of one of them."""
    host = FakeHost()
    for package in (0, 1):
        add_zone(host, f"intel-rapl:{package}", f"package-{package}", "1000")
        add_zone(host, f"intel-rapl:{package}:0", "dram", "2000")
    add_zone(host, "intel-rapl-mmio:0", "package-0", "777")
    add_zone(host, "intel-rapl:2", "psys", "3000")
    host.files[f"{POWERCAP_ROOT}/intel-rapl/enabled"] = "1"
    directory = f"{POWERCAP_ROOT}/intel-rapl:0"
    host.files |= {
        f"{directory}/constraint_0_name": "long_term\n",
        f"{directory}/constraint_0_power_limit_uw": "350000000\n",
        f"{directory}/constraint_1_name": "short_term\n",
        f"{directory}/constraint_1_power_limit_uw": "420000000\n",
        f"{directory}/constraint_2_name": "peak_power\n",
        f"{directory}/constraint_2_power_limit_uw": "0\n",
    }
    return host


def test_domains_are_named_after_their_parents(server: FakeHost) -> None:
    reader = SourceReader(RaplSource(), server, ORIGIN)
    assert set(readings(reader.run().frame).values()) == {Absent.NOT_DUE, 350_000_000, 420_000_000}
    server.clock.advance(5)
    server.files[f"{POWERCAP_ROOT}/intel-rapl:0/energy_uj"] = "1001000"
    found = numbers(reader.run().frame)
    assert found == {
        (ENERGY, ("package-0",)): 1.0,
        (ENERGY, ("package-0/dram",)): 0,
        (ENERGY, ("package-1",)): 0,
        (ENERGY, ("package-1/dram",)): 0,
        (ENERGY, ("psys",)): 0,
        (LIMIT, ("package-0", "long_term")): 350,
        (LIMIT, ("package-0", "short_term")): 420,
    }


def test_denied_energy_has_a_remedy_and_limits_are_read(server: FakeHost) -> None:
    for path in list(server.files):
        if path.endswith("/energy_uj"):
            server.files[path] = DENIED
    outcome = read_once(RaplSource(), server)
    found = readings(outcome.frame)
    assert {found[key] for key in found if key[0] == ENERGY} == {Absent.DENIED}
    assert found[LIMIT, ("package-0", "long_term")] == 350_000_000
    (finding,) = outcome.findings
    assert finding.verdict is ProbeVerdict.DENIED
    assert "CAP_DAC_READ_SEARCH" in finding.remedy


def test_a_server_without_domains() -> None:
    outcome = read_once(RaplSource(), FakeHost())
    assert outcome.frame is None
    assert outcome.findings[0].verdict is ProbeVerdict.ABSENT


def test_one_domain_that_fails_costs_its_own_reading(server: FakeHost) -> None:
    reader = SourceReader(RaplSource(), server, ORIGIN)
    reader.run()
    server.clock.advance(1)
    server.files[f"{POWERCAP_ROOT}/intel-rapl:1/energy_uj"] = "garbage"
    found = readings(reader.run().frame)
    assert found[ENERGY, ("package-1",)] is Absent.ERROR
    assert found[ENERGY, ("package-0",)] == 0
    server.clock.advance(1)
    server.files[f"{POWERCAP_ROOT}/intel-rapl:1/energy_uj"] = "5000"
    assert readings(reader.run().frame)[ENERGY, ("package-1",)] == 4000, "nothing is lost"


def test_a_limit_that_is_lifted_is_none(server: FakeHost) -> None:
    reader = SourceReader(RaplSource(), server, ORIGIN)
    reader.run()
    server.files[f"{POWERCAP_ROOT}/intel-rapl:0/constraint_0_power_limit_uw"] = "0\n"
    found = readings(reader.run().frame)
    assert found[LIMIT, ("package-0", "long_term")] is Absent.UNSUPPORTED


def test_the_total_goes_on_over_a_probe(server: FakeHost) -> None:
    reader = SourceReader(RaplSource(), server, ORIGIN)
    reader.run()
    for second in range(1, 200):
        server.clock.advance(1)
        server.files[f"{POWERCAP_ROOT}/intel-rapl:0/energy_uj"] = str(1000 + second * 400_000_000)
        found = readings(reader.run().frame)
    assert found[ENERGY, ("package-0",)] == 199 * 400_000_000


# Rounds and resets --------------------------------------------------------------------------------


@given(
    start=st.integers(0, RANGE - 1),
    reads=st.lists(st.tuples(st.integers(1, 60), st.integers(0, MAX_WATTS)), max_size=40),
)
def test_rounds_are_carried_on_exactly(start: int, reads: list[tuple[int, int]]) -> None:
    counter = EnergyCounter(RANGE)
    used, now_ns = 0, START.boot_ns
    assert counter.advance(start, now_ns) is Absent.NOT_DUE
    for seconds, watts in reads:
        used += seconds * watts * 10**6
        now_ns += seconds * SECOND
        assert counter.advance((start + used) % RANGE, now_ns) == used


@given(
    before=st.integers(1, RANGE - 1), after=st.integers(0, RANGE - 1), seconds=st.integers(0, 60)
)
def test_a_fall_that_no_processor_could_have_made_is_a_reset(
    before: int, after: int, seconds: int
) -> None:
    counter = EnergyCounter(RANGE)
    counter.advance(before, 0)
    total = counter.advance(after, seconds * SECOND)
    if after >= before:
        assert total == after - before
    elif after + RANGE - before > seconds * MAX_WATTS * 10**6:
        assert total == 0
    else:
        assert total == after + RANGE - before
    assert counter.advance(after, seconds * SECOND) == total, "it goes on from there"


@given(raw=st.integers(0, RANGE - 1), seconds=st.integers(132, 10**6))
def test_after_a_long_pause_the_number_of_wraps_is_unknown(raw: int, seconds: int) -> None:
    counter = EnergyCounter(RANGE)
    counter.advance(5, 0)
    counter.advance(10, SECOND)
    assert counter.advance(raw, (1 + seconds) * SECOND) == 0


def test_however_rarely_it_is_read_no_round_goes_by_unseen() -> None:
    smallest = 65_532_610_987  # 2^32 units of 15.26 uJ: AMD, and memory of Intel
    seconds = round(longest_period_seconds(RaplSource()))
    counter = EnergyCounter(smallest)
    counter.advance(0, 0)
    used = 0
    for number in range(1, 10):
        used += seconds * MAX_WATTS * 10**6
        assert counter.advance(used % smallest, number * seconds * SECOND) == used


# The copied tree ----------------------------------------------------------------------------------


def test_every_domain_of_the_tree(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = server_tree(tmp_path_factory)
    clock = ManualClock()
    reader = SourceReader(RaplSource(), LiveHost(root, clock), ORIGIN)
    reader.run()
    clock.advance(2)
    expected = {}
    for zone in sorted((root / "sys/class/powercap").glob("intel-rapl:*")):
        above = zone.name.rsplit(":", 1)[0]
        whole = zone.with_name(above) / "name"
        names = [whole] if whole.exists() else []
        domain = "/".join(file.read_text().strip() for file in (*names, zone / "name"))
        raise_by(zone / "energy_uj", 1_500_000)
        expected[ENERGY, (domain,)] = 1.5
        for file in zone.glob("constraint_*_power_limit_uw"):
            name = file.with_name(file.name.replace("power_limit_uw", "name")).read_text().strip()
            if limit := int(file.read_text()):
                expected[LIMIT, (domain, name)] = limit / 1e6
    assert (ENERGY, ("package-0/core",)) in expected
    assert len(expected) >= 6
    assert numbers(reader.run().frame) == expected


def raise_by(file: Path, step: int) -> None:
    value = int(file.read_text())
    file.chmod(0o644)
    file.write_text(f"{value + step}\n")
