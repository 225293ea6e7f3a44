"""Rails and roles in the settings, which take precedence over those that the agent detects."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agent.config import TopologySettings
from agent.topology.tree_file import NcclFileError, NcclTopology
from railscope.settings import SettingsError

COMPUTE, STORAGE, MANAGEMENT, BRIDGE, VIRTUAL_FUNCTION = ROLES = (
    "compute", "storage", "management", "bridge", "virtual_function",
)  # fmt: skip
"""Roles of network devices. A bridge leads to an NVSwitch and is no NIC at all."""
_RAIL = "rail"


@dataclass(frozen=True)
class Rules:
    """The validated settings of the section [topology].

    Names are those of an RDMA device, an interface or a PCI address.
    """

    rails: Mapping[str, int] = field(default_factory=dict)
    roles: Sequence[tuple[re.Pattern[str], str]] = ()
    rail_pattern: re.Pattern[str] | None = None
    expected_megabits: Mapping[str, int] = field(default_factory=dict)
    tree: NcclTopology | None = None

    def rail(self, names: Iterable[str]) -> tuple[int, str] | None:
        """Return the rail of the device with these names, and the setting that specifies it."""
        told = list(names)
        for name in told:
            if name in self.rails:
                return self.rails[name], f"topology.rails has {name}"
        for name in told if self.rail_pattern else ():
            assert self.rail_pattern is not None  # noqa: S101 - see above
            match = self.rail_pattern.fullmatch(name)
            if match and (match[_RAIL] or "").isdecimal():
                return int(match[_RAIL]), f"topology.rail_pattern matches {name}"
        return None

    def role(self, names: Iterable[str]) -> tuple[str, str] | None:
        """Return the role of the device with these names, and its setting; the first match counts."""
        told = list(names)
        for pattern, role in self.roles:
            for name in told:
                if pattern.fullmatch(name):
                    return role, f"topology.roles has {pattern.pattern}"
        return None

    def unused(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return names and patterns in the settings that match none of these names."""
        told = set(names)
        plain = dict.fromkeys((*self.rails, *self.expected_megabits))
        patterns = [p.pattern for p, _ in self.roles if not any(map(p.fullmatch, told))]
        return (*(name for name in plain if name not in told and name not in ROLES), *patterns)

    def speed(self, names: Iterable[str]) -> int | None:
        """Return the expected line rate of a link in Mb/s, by its names and its role."""
        told = (self.expected_megabits.get(name) for name in names)
        return next((speed for speed in told if speed is not None), None)

    @property
    def name_rails(self) -> bool:
        """True if names in the settings determine rails."""
        return bool(self.rails or self.rail_pattern)


def rules(settings: TopologySettings) -> Rules:
    """Validate the settings. Raises SettingsError that names the setting and a valid value."""
    for name, rail in settings.rails.items():
        if rail < 0:
            message = f"topology.rails: {name} = {rail}: rails are counted from 0"
            raise SettingsError(message)
    for name, megabits in settings.expected_megabits.items():
        if megabits <= 0:
            message = f"topology.expected_megabits: {name} = {megabits}: write Mb/s, as 400000"
            raise SettingsError(message)
    roles = [_role(name, role) for name, role in settings.roles.items()]
    pattern, tree = _pattern(settings.rail_pattern), _tree(settings.nccl_file)
    found = Rules(settings.rails, roles, pattern, settings.expected_megabits, tree)
    for name in settings.rails:
        given = found.role([name])
        if given and given[0] != COMPUTE:
            message = (
                f"topology.rails gives {name} a rail and {given[1]} = {given[0]!r}:"
                f" what has a rail is {COMPUTE}; take it out of one of them"
            )
            raise SettingsError(message)
    return found


def _role(name: str, role: str) -> tuple[re.Pattern[str], str]:
    if role not in ROLES:
        message = f"topology.roles: {name} = {role!r}: the roles are {', '.join(ROLES)}"
        raise SettingsError(message)
    return _compiled("topology.roles", name), role


def _pattern(text: str) -> re.Pattern[str] | None:
    if not text:
        return None
    pattern = _compiled("topology.rail_pattern", text)
    if _RAIL not in pattern.groupindex:
        message = rf"topology.rail_pattern {text!r} has no group (?P<{_RAIL}>\d+) for the number"
        raise SettingsError(message)
    return pattern


def _compiled(setting: str, text: str) -> re.Pattern[str]:
    try:
        return re.compile(text, re.ASCII)
    except re.error as error:
        message = f"{setting}: {text!r} is no regular expression: {error}"
        raise SettingsError(message) from error


def _tree(file: str) -> NcclTopology | None:
    if not file:
        return None
    from agent.topology.nccl_xml import parse  # noqa: PLC0415 - few have one, and XML is large

    try:
        return parse(Path(file).read_bytes())
    except OSError as error:
        message = f"topology.nccl_file: {file} cannot be read: {error.strerror}"
        raise SettingsError(message) from error
    except NcclFileError as error:
        message = f"topology.nccl_file: {file}: {error}"
        raise SettingsError(message) from error
