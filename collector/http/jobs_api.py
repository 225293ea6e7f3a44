"""Routes of the jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from collector.access.credential import Credential, Role
from collector.fleet.device_names import NamesOfGpu
from collector.http.gate import Handlers, json_answer
from collector.workloads.holding import JobKey
from collector.workloads.roster import Job
from collector.workloads.view import Jobs


@dataclass(slots=True)
class JobsApi:
    """Handlers that use the latest view. `names_of` returns the names of a GPU of a node."""

    jobs: Callable[[], Jobs]
    names_of: NamesOfGpu

    def handlers(self) -> Handlers:
        """Return the handlers by route name."""
        return {"jobs": self._list, "job": self._one}

    async def _list(self, request: web.Request, who: Credential) -> web.Response:
        view = self.jobs()
        tenants = (
            {who.tenant} if who.role is Role.TENANT else set(request.query.getall("tenant", []))
        )
        chosen = [job for job in view.jobs if not tenants or job.key.tenant in tenants]
        rows = await asyncio.to_thread(self._rows, view, chosen)
        content = {"view": "jobs", "instant_ns": view.instant_ns, "rows": rows}
        if who.role is not Role.TENANT:
            content["left_out"] = view.left_out
        return json_answer(content)

    async def _one(self, request: web.Request, _: Credential) -> web.Response:
        view, named = self.jobs(), request.match_info
        key = JobKey(named["tenant"], named["source"], named["workload"])
        job = next((job for job in view.jobs if job.key == key), None)
        if job is None:
            return json_answer({"error": "no such job holds GPUs now"}, 404)
        return json_answer(await asyncio.to_thread(self._whole, view, job))

    def _whole(self, view: Jobs, job: Job) -> dict[str, Any]:
        told = {"instant_ns": view.instant_ns, **view.to_json(job, self.names_of)}
        return told | {"places": view.places(job, self.names_of)}

    def _rows(self, view: Jobs, jobs: Iterable[Job]) -> list[dict[str, Any]]:
        return [view.to_json(job, self.names_of) for job in jobs]
