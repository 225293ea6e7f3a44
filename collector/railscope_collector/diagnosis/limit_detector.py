"""Detector of devices that report a fault by one quantity above its limit, for all rows of `quantities.LIMITS`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from railscope_collector.diagnosis import findings
from railscope_collector.diagnosis.quantities import LIMITS


def exceeded_limits(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield the NICs and GPUs with a quantity above its limit."""
    for limit in LIMITS:
        signal, kind = limit.quantity.name, limit.quantity.device
        values = view.signals.table(kind, view.signals.window)[signal]
        compared = findings.Compared(signal, values, limit.above)
        is_faulty = findings.above(values, limit.above) & ~(values > limit.up_to)
        for each in findings.of_devices(view, kind, limit.incident, is_faulty, compared):
            yield replace(each, strength=limit.strength)
