"""Rails, roles and speeds of network devices in the settings [topology].

They take precedence over those that the agent detects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from railscope.settings import SettingsError
from railscope_agent.config import TopologySettings
from railscope_agent.topology import nccl_topology

COMPUTE, STORAGE, MANAGEMENT, BRIDGE, VIRTUAL_FUNCTION = ROLES = (
    "compute",
    "storage",
    "management",
    "bridge",
    "virtual_function",
)
"""Roles of network devices. A bridge leads to an NVSwitch and is not a NIC."""
_RAIL = "rail"


@dataclass(frozen=True)
class RailRules:
    """The validated settings of the section [topology].

    A name is an RDMA device, an interface or a PCI address.
    """

    rails: Mapping[str, int] = field(default_factory=dict)
    roles: Sequence[tuple[re.Pattern[str], str]] = ()
    rail_pattern: re.Pattern[str] | None = None
    expected_megabits_per_second: Mapping[str, int] = field(default_factory=dict)
    tree: nccl_topology.NcclTopology | None = None

    def find_rail(self, names: Iterable[str]) -> tuple[int, str] | None:
        """Return the rail of the device with these names, and the setting that specifies it."""
        of_device = list(names)
        for name in of_device:
            if name in self.rails:
                return self.rails[name], f"topology.rails contains {name}"
        for name in of_device:
            match = self.rail_pattern.fullmatch(name) if self.rail_pattern else None
            # The group may be optional, or match something that is not a number.
            if match and (match[_RAIL] or "").isdecimal():
                return int(match[_RAIL]), f"topology.rail_pattern matches {name}"
        return None

    def find_role(self, names: Iterable[str]) -> tuple[str, str] | None:
        """Return the role of the device with these names, and its setting; the first match counts."""
        of_device = list(names)
        for pattern, role in self.roles:
            if any(map(pattern.fullmatch, of_device)):
                return role, f"topology.roles contains {pattern.pattern}"
        return None

    def find_unused(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return names and patterns in the settings that match none of these names."""
        of_node = set(names)
        plain = dict.fromkeys((*self.rails, *self.expected_megabits_per_second))
        patterns = [p.pattern for p, _ in self.roles if not any(map(p.fullmatch, of_node))]
        return (*(name for name in plain if name not in of_node and name not in ROLES), *patterns)

    def expected_speed(self, names: Iterable[str]) -> int | None:
        """Return the expected line rate of a link in Mb/s, by its names and its role."""
        speeds = (self.expected_megabits_per_second.get(name) for name in names)
        return next((speed for speed in speeds if speed is not None), None)


def parse_rail_rules(settings: TopologySettings) -> RailRules:
    """Validate the settings. Raises SettingsError that names the setting and a valid value."""
    for name, rail in settings.rails.items():
        if rail < 0:
            message = f"invalid topology.rails: {name} = {rail}: expected 0 or more"
            raise SettingsError(message)
    for name, megabits in settings.expected_megabits_per_second.items():
        if megabits <= 0:
            message = (
                f"invalid topology.expected_megabits_per_second: {name} = {megabits}: "
                "expected Mb/s, such as 400000"
            )
            raise SettingsError(message)
    roles = [_parse_role(name, role) for name, role in settings.roles.items()]
    pattern, tree = _parse_rail_pattern(settings.rail_pattern), _read_nccl_file(settings.nccl_file)
    rules = RailRules(settings.rails, roles, pattern, settings.expected_megabits_per_second, tree)
    for name in settings.rails:
        role_setting = rules.find_role([name])
        if role_setting and role_setting[0] != COMPUTE:
            message = (
                f"conflicting role of {name}: topology.rails contains it, and "
                f"{role_setting[1]} = {role_setting[0]!r}: expected {COMPUTE}; fix: remove it from "
                "one of them"
            )
            raise SettingsError(message)
    return rules


def _parse_role(name: str, role: str) -> tuple[re.Pattern[str], str]:
    if role not in ROLES:
        message = f"invalid topology.roles: {name} = {role!r}: expected one of {', '.join(ROLES)}"
        raise SettingsError(message)
    return _compile_pattern("topology.roles", name), role


def _parse_rail_pattern(text: str) -> re.Pattern[str] | None:
    if not text:
        return None
    pattern = _compile_pattern("topology.rail_pattern", text)
    if _RAIL not in pattern.groupindex:
        message = (
            f"invalid topology.rail_pattern {text!r}: expected a group "
            rf"(?P<{_RAIL}>\d+) for the number"
        )
        raise SettingsError(message)
    return pattern


def _compile_pattern(setting: str, text: str) -> re.Pattern[str]:
    try:
        # ASCII: `\d` would match digits of other scripts.
        return re.compile(text, re.ASCII)
    except re.error as error:
        message = f"invalid {setting}: {text!r}: expected a regular expression: {error}"
        raise SettingsError(message) from error


def _read_nccl_file(file: str) -> nccl_topology.NcclTopology | None:
    if not file:
        return None
    from railscope_agent.topology.nccl_xml import parse_nccl_topology  # noqa: PLC0415 - few have one, and XML is large

    try:
        return parse_nccl_topology(Path(file).read_bytes())
    except OSError as error:
        message = f"cannot read topology.nccl_file {file}: {error.strerror}"
        raise SettingsError(message) from error
    except nccl_topology.NcclFileError as error:
        message = f"invalid topology.nccl_file {file}: {error}"
        raise SettingsError(message) from error
