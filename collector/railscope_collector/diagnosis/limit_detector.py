"""Detector of devices that report a fault by one quantity above its limit, for all rows of `quantities.LIMITS`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from railscope_collector.diagnosis import findings
from railscope_collector.diagnosis.quantities import LIMITS, DeviceKind


def exceeded_limits(view: findings.DiagnosisView) -> Iterator[findings.Finding]:
    """Yield the NICs and GPUs with a quantity above its limit."""
    for limit in LIMITS:
        signal, kind = limit.quantity.name, limit.quantity.device
        values = view.signals.table(kind, view.signals.window)[signal]
        compared = findings.Compared(signal, values, limit.above)
        evidence_of = compared.of_gpus if kind is DeviceKind.GPU else compared.of_nics
        is_faulty = findings.above(values, limit.above) & ~(values > limit.up_to)
        for position in np.flatnonzero(is_faulty).tolist():
            yield findings.Finding(
                limit.incident,
                findings.Cause(kind.value, position),
                evidence_of(view, [position]),
                limit.strength,
            )
