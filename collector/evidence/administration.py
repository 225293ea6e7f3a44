"""Audit records of a new version of an administrator's file, each recorded once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from collector.audit.events import clean
from collector.files import inventory_file, retired_file, tenants_file
from collector.files.retired_file import Retirement
from collector.ledger.draft import Draft
from collector.metering.units import FOREVER_NS
from railscope.audit.record import Actor, Data, Subject


class Version(NamedTuple):
    """Version of a file, with the text of the previous version; empty if there was none."""

    kind: str
    text: str
    before: str
    digest: str
    recorded_ns: int

    def drafts(self) -> Iterator[tuple[str, Draft]]:
        """Return its audit records, each with its own id."""
        of = f"{self.recorded_ns}/{self.digest}"
        if self.kind == "tenants":
            count = sum(1 for _ in tenants_file.parse(self.text))
            yield f"tenant_map/{of}", self._draft("billing.tenant_map", {"rows": count})
        elif self.kind == "inventory":
            count = sum(1 for _ in inventory_file.parse(self.text))
            data: Data = {"file": "inventory", "rows": count}
            yield f"inventory/{of}", self._draft("admin.config", data)
        elif self.kind == "retired":
            for number, (what, one) in enumerate(self._retirements()):
                yield f"retired/{of}/{number}", self._retirement(what, one)

    def _retirements(self) -> list[tuple[str, Retirement]]:
        """Return the added and the removed rows."""
        before, now = (
            set(retired_file.parse(text)) if text else set() for text in (self.before, self.text)
        )
        return [
            *(("withdrawn", one) for one in sorted(before - now)),
            *(("retired", one) for one in sorted(now - before)),
        ]

    def _retirement(self, what: str, one: Retirement) -> Draft:
        data: Data = {"what": what, "from_ns": str(one.start_ns), "why": clean(one.why)}
        if one.end_ns != FOREVER_NS:
            data["to_ns"] = str(one.end_ns)
        return self._draft("device.retire", data, Subject(gpu=clean(one.gpu)))

    def _draft(self, kind: str, data: Data, subject: Subject | None = None) -> Draft:
        actor = Actor("administrator", f"{self.kind}_file")
        told: Data = {"sha256": self.digest, **data}
        return Draft(kind, actor, self.recorded_ns, "done", subject or Subject(), told)
