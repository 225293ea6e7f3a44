"""Energy of the processors' power domains (RAPL), from the kernel's power capping framework.

Files: torvalds/linux Documentation/power/powercap/powercap.rst. Intel and AMD processors share the
driver's name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from railscope.catalog import entities, sensors as catalog
from railscope.frame import Entity
from railscope.reading import Absent, Reading
from railscope_agent.host import Host
from railscope_agent.sampling import (
    answer_readings,
    fact_readers,
    probe_result,
    row_builder,
    source,
)

POWERCAP_ROOT = "/sys/class/powercap"
MAX_WATTS = 2000
"""Higher than the power of any domain with a counter that wraps within a day."""
_RANGE_FILE = "max_energy_range_uj"
_ZONE = re.compile(r"intel-rapl(-mmio)?(:[0-9a-f]+)+")


@dataclass(slots=True)
class EnergyCounter:
    """A counter that wraps at a range, extended from 0; all energy in uJ."""

    range_uj: int
    total_uj: int = 0
    _last: tuple[int, int] | None = None

    def advance(self, raw_uj: int, now_ns: int) -> Reading:
        """Total after a sample of the hardware's counter; NOT_DUE for the first sample.

        A decrease is a wrap if the energy it stands for could have been used since the last sample,
        and otherwise a reset. After a reset, and after a pause so long that wraps may have been
        missed, the total restarts at 0, so that the gap is not mistaken for measured energy.
        """
        last, self._last = self._last, (raw_uj, now_ns)
        if last is None:
            return Absent.NOT_DUE
        before_uj, before_ns = last
        max_uj = (now_ns - before_ns) * MAX_WATTS // 1000
        step_uj = raw_uj - before_uj
        if step_uj < 0:
            step_uj += self.range_uj
        rounds_may_be_unseen = max_uj >= self.range_uj
        fell_by_reset = raw_uj < before_uj and not 0 <= step_uj <= max_uj
        if rounds_may_be_unseen or fell_by_reset:
            self.total_uj = 0
        else:
            self.total_uj += step_uj
        return self.total_uj


class RaplSource(source.SourceWithFiles):
    """Energy and power limits of packages, memory and cores.

    Only root may read energy_uj since kernel 5.10 (CVE-2020-8694); without root the limits are still
    readable. The counter wraps at max_energy_range_uj, every few minutes on a busy package. It is extended
    to 64 bits; one unit of the hardware (15 or 61 uJ) is lost at each wrap.
    """

    name = "rapl"
    lane = source.SYSTEM
    period_seconds = 5.0
    denied_remedy = (
        "run the agent as root, grant it CAP_DAC_READ_SEARCH, or make "
        "/sys/class/powercap/*/energy_uj readable"
    )
    longest_period_seconds = 30.0
    """The smallest range, 65.5 kJ, may be used up in 33 seconds."""

    def __init__(self) -> None:
        self._counters: dict[str, EnergyCounter] = {}
        self._domains: list[EnergyCounter] = []

    def probe(self, host: Host) -> probe_result.ProbeResult:
        """Find the domains; a domain reported by two interfaces is used once."""
        columns = probe_result.ColumnBuilder()
        domains = _domains(host)
        self._domains = []
        for domain, directory in domains.items():
            columns.add(catalog.RAPL_ENERGY, Entity(entities.ENERGY_DOMAIN, (domain,)))
            range_uj = int(fact_readers.read_text(host, f"{directory}/{_RANGE_FILE}"))
            counter = self._counters.get(domain)
            if counter is None or counter.range_uj != range_uj:
                counter = self._counters[domain] = EnergyCounter(range_uj)
            self._domains.append(counter)
        limits: list[str] = []
        for domain, directory in domains.items():
            for limit, path in _limits(host, directory):
                columns.add(catalog.RAPL_POWER_LIMIT, Entity(entities.POWER_LIMIT, (domain, limit)))
                limits.append(path)
        energies = ([f"{directory}/energy_uj"] for directory in domains.values())
        self._keep(host, *energies, limits)
        return columns.result()

    def read(self, host: Host, into: row_builder.RowBuilder) -> None:
        """Read every counter, then every limit."""
        if not self._files:
            return
        *energies, limits = self._files
        for column, (energy, counter) in enumerate(zip(energies, self._domains, strict=True)):
            raw = answer_readings.content_reading(energy.texts()[0])
            # Per counter: reading one may take long, and the plausible energy depends on the time.
            now_ns = host.clock.now().boot_ns
            into.put(column, raw if isinstance(raw, Absent) else counter.advance(raw, now_ns))
        for column, content in enumerate(limits.texts(), len(self._domains)):
            limit = answer_readings.content_reading(content)
            into.put(column, limit or Absent.UNSUPPORTED)  # 0: no limit is set


def _domains(host: Host) -> dict[str, str]:
    """Directories by the path of the domain, with its parents: package-0/core.

    Model-specific registers precede memory-mapped ones, which report the same packages.
    """
    zones = [zone for zone in fact_readers.list_names(host, POWERCAP_ROOT) if _ZONE.fullmatch(zone)]
    domains: dict[str, str] = {}
    for zone in sorted(zones, key=lambda zone: (zone.startswith("intel-rapl-mmio"), zone)):
        control, *numbers = zone.split(":")
        above = [":".join([control, *numbers[: depth + 1]]) for depth in range(len(numbers))]
        names = [fact_readers.read_text(host, f"{POWERCAP_ROOT}/{part}/name") for part in above]
        range_uj = fact_readers.read_text(host, f"{POWERCAP_ROOT}/{zone}/{_RANGE_FILE}")
        if all(names) and range_uj.isdecimal():
            domains.setdefault("/".join(names), f"{POWERCAP_ROOT}/{zone}")
    return domains


def _limits(host: Host, directory: str) -> list[tuple[str, str]]:
    limits: dict[str, str] = {}
    for file in fact_readers.list_names(host, directory):
        if match := re.fullmatch(r"constraint_(\d+)_power_limit_uw", file):
            name = fact_readers.read_text(host, f"{directory}/constraint_{match[1]}_name")
            if name and fact_readers.read_text(host, f"{directory}/{file}").strip("0"):
                limits.setdefault(name, f"{directory}/{file}")
    return list(limits.items())
