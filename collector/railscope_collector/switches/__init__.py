"""Switches: the collector polls them, and stores what they report as frames, as it stores those of agents.

A reader implements one protocol and returns readings (`switch_reading`); frames, tasks and views are the same for all.
"""

from railscope_collector.switches.switch_reading import SwitchReadError

__all__ = ["SwitchReadError"]
