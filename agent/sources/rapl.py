"""Energy of the processors' power domains, from the kernel's power capping framework.

Files: torvalds/linux Documentation/power/powercap/powercap.rst. Intel and AMD processors share the
driver's name. Only root may read energy_uj since kernel 5.10 (CVE-2020-8694); without root the
limits are still readable.

The counter wraps at max_energy_range_uj, every few minutes on a busy package. It is extended to 64
bits here; one unit of the hardware (15 or 61 uJ) is lost at each wrap.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from agent.host import Host, KeptFiles
from agent.sampling.facts import counted, names, text
from agent.sampling.source import Columns, Finding, Inventory, Table, Verdict
from railscope.catalog import power as catalog
from railscope.catalog.entities import ENERGY_DOMAIN, POWER_LIMIT
from railscope.entity import Entity
from railscope.reading import Absent, Reading, parse_integer, reason_of

ROOT = "/sys/class/powercap"
MAX_WATTS = 2000
"""Higher than the power of any domain with a counter that wraps within a day."""
_RANGE = "max_energy_range_uj"
_ZONE = re.compile(r"intel-rapl(-mmio)?(:[0-9a-f]+)+")
_REMEDY = "run the agent as root, give it CAP_DAC_READ_SEARCH, or let it read /sys/class/powercap/*/energy_uj"


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


class Rapl:
    """Energy and power limits of packages, memory and cores."""

    name = "rapl"
    family = "host"
    longest_period_seconds = 30.0
    """The smallest range, 65.5 kJ, may be used up in 33 seconds."""

    def __init__(self, period_seconds: float = 5.0) -> None:
        self.period_seconds = period_seconds
        self._counters: dict[str, EnergyCounter] = {}
        self._domains: list[EnergyCounter] = []
        self._energy: KeptFiles | None = None
        self._limits: KeptFiles | None = None

    def probe(self, host: Host) -> Inventory:
        """Find the domains; a domain reported by two interfaces is used once."""
        columns = Columns()
        domains = _domains(host)
        denied = False
        self._domains = []
        for domain, directory in domains.items():
            columns.add(catalog.ENERGY, Entity(ENERGY_DOMAIN, (domain,)))
            range_uj = int(text(host, f"{directory}/{_RANGE}"))
            counter = self._counters.get(domain)
            if counter is None or counter.range_uj != range_uj:
                counter = self._counters[domain] = EnergyCounter(range_uj)
            self._domains.append(counter)
            denied = denied or _denied(host, f"{directory}/energy_uj")
        limits: list[str] = []
        for domain, directory in domains.items():
            for limit, path in _limits(host, directory):
                columns.add(catalog.LIMIT, Entity(POWER_LIMIT, (domain, limit)))
                limits.append(path)
        self.close()
        self._energy = host.keep([f"{directory}/energy_uj" for directory in domains.values()])
        self._limits = host.keep(limits)
        return Inventory(tuple(columns.columns), (), (_finding(list(domains), denied=denied),))

    def read(self, host: Host, into: Table) -> None:
        """Read every counter, then every limit."""
        if self._energy is None or self._limits is None:
            return
        for column, counter in enumerate(self._domains):
            raw = _integer(self._energy, column)
            now_ns = host.clock.now().boot_ns
            into.put(column, raw if isinstance(raw, Absent) else counter.advance(raw, now_ns))
        start = len(self._domains)
        for column in range(start, len(into.values)):
            limit = _integer(self._limits, column - start)
            into.put(column, limit or Absent.UNSUPPORTED)  # 0: no limit is set

    def close(self) -> None:
        """Close the open files."""
        for kept in (self._energy, self._limits):
            if kept:
                kept.close()
        self._energy = self._limits = None


def _domains(host: Host) -> dict[str, str]:
    """Directories by the path of the domain, with its parents: package-0/core.

    Model-specific registers precede memory-mapped ones, which report the same packages.
    """
    zones = [zone for zone in names(host, ROOT) if _ZONE.fullmatch(zone)]
    found: dict[str, str] = {}
    for zone in sorted(zones, key=lambda zone: (zone.startswith("intel-rapl-mmio"), zone)):
        control, *numbers = zone.split(":")
        above = [":".join([control, *numbers[: depth + 1]]) for depth in range(len(numbers))]
        words = [text(host, f"{ROOT}/{part}/name") for part in above]
        if all(words) and text(host, f"{ROOT}/{zone}/{_RANGE}").isdecimal():
            found.setdefault("/".join(words), f"{ROOT}/{zone}")
    return found


def _limits(host: Host, directory: str) -> list[tuple[str, str]]:
    found: dict[str, str] = {}
    for file in names(host, directory):
        if match := re.fullmatch(r"constraint_(\d+)_power_limit_uw", file):
            name = text(host, f"{directory}/constraint_{match[1]}_name")
            if name and text(host, f"{directory}/{file}").strip("0"):
                found.setdefault(name, f"{directory}/{file}")
    return list(found.items())


def _integer(files: KeptFiles, index: int) -> Reading:
    try:
        return parse_integer(files.text(index))
    except OSError as error:
        return reason_of(error)


def _denied(host: Host, path: str) -> bool:
    try:
        host.read(path)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _finding(domains: list[str], *, denied: bool) -> Finding:
    what = "energy of the processors"
    if not domains:
        return Finding(what, Verdict.ABSENT, f"{ROOT} has no RAPL domain (usual in a VM)")
    detail = f"{counted(len(domains), 'domain')}: {', '.join(domains)}"
    if denied:
        return Finding(what, Verdict.DENIED, detail, _REMEDY)
    return Finding(what, Verdict.SUPPORTED, detail)
