"""Incidents of the demo: their jobs are the same on every surface, and what they cost is known in the first round."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from prometheus_client.parser import text_string_to_metric_families
from running_collector import RunningCollector, run_collector, settings_in
from support.command_line import run
from support.demo_round import TENANTS, DemoRound, write_round
from support.fed_diagnosis import FedDiagnosis
from support.once_per_run import once_per_run

from railscope.service import run_in_thread
from railscope_collector.access.credentials import digest_token
from railscope_simulator.demo.faults import FAULTS

_VICTIM = re.compile(r'href="/jobs/([^/"]+)/([^/"]+)/([^"?]+)"')
Jobs = dict[str, set[tuple[str, str]]]
"""Tenant and name of each job that an incident affects, by the incident."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> DemoRound:
    return DemoRound(once_per_run(tmp_path_factory, "demo-round", write_round))


async def metric_jobs(one: RunningCollector, token: str = "token-reader") -> Jobs:  # noqa: S107 - a test's token
    """Jobs of the metric that the rule of alerts prints."""
    _, text = await one.get("/metrics", token)
    found: Jobs = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "railscope_job_incident":
                labels = sample.labels
                found.setdefault(labels["incident"], set()).add(
                    (labels["tenant"], labels["workload"])
                )
    return found


async def api_rows(one: RunningCollector, token: str = "token-reader") -> list[dict[str, Any]]:  # noqa: S107 - a test's token
    rows: list[dict[str, Any]] = (await one.json("/api/v1/incidents?state=open", token))["rows"]
    return [row for row in rows if not row["explained_by"]]


def jobs_of(rows: list[dict[str, Any]]) -> Jobs:
    return {
        row["id"]: {(job["tenant"], job["workload"]) for job in row["jobs"]}
        for row in rows
        if row["jobs"]
    }


async def shown_jobs(one: RunningCollector, incident: str, token_file: Path) -> list[set[Any]]:
    """Jobs of an incident on its page of the console, and in the terminal."""
    status, page = await one.get(f"/incidents/{incident}")
    assert status == 200
    victims = page.partition('<section id="victims"')[2].partition("</section>")[0]
    on_page = {
        (unquote(tenant), unquote(workload)) for tenant, _, workload in _VICTIM.findall(victims)
    }
    arguments = ("--collector", one.url, "--token-file", str(token_file))
    text = (await run_in_thread(run, "incidents", incident, *arguments)).stdout
    line = re.search(r"^jobs +(.*(?:\n  .*)*)", text, re.MULTILINE)
    names = re.sub(r" \([^)]*\)", "", " ".join(line[1].split())) if line else ""
    in_terminal = {tuple(name.split("/", 1)) for name in names.split(", ") if name}
    return [on_page, in_terminal]


@pytest.mark.timeout(900)  # it simulates ten minutes of four nodes
async def test_the_jobs_of_an_incident_are_the_same_on_every_surface_and_its_cost_is_known(
    demo: DemoRound, tmp_path: Path
) -> None:
    settings = settings_in(tmp_path)
    tokens, token_file = tmp_path / "tokens.toml", tmp_path / "reader"
    tenants = "".join(
        f'[tenants.{name}]\nreader = "{digest_token("token-" + name)}"\n'
        for name in TENANTS.values()
    )
    tokens.write_text(tokens.read_text() + tenants)
    token_file.touch(0o600)
    token_file.write_text("token-reader\n")
    frames, now_ns = demo.frames, demo.frames.start_ns

    def replace_diagnosis(one: RunningCollector) -> None:
        diagnosis = one.collector.diagnosis
        diagnosis.wall_ns, diagnosis.jobs = lambda: now_ns, lambda: demo.jobs_at(now_ns)

    seen, shown = dict[str, dict[str, Any]](), set[str]()
    async with run_collector(settings, replace_diagnosis) as one:
        service = one.collector.diagnosis
        service.open()
        diagnosis = FedDiagnosis(service, frames.schemas.__getitem__)
        await diagnosis.evaluate()
        for end_ns in demo.ends_ns:
            for record in frames.records(now_ns, end_ns):
                diagnosis.log.records.append(record)
            demo.add_claims(end_ns)
            now_ns = end_ns
            await diagnosis.evaluate()
            if not service.table.incidents:
                continue
            rows = await api_rows(one)
            seen |= {row["class"]: row for row in rows}
            jobs = jobs_of(rows)
            if str(jobs) in shown:
                continue
            shown.add(str(jobs))
            assert await metric_jobs(one) == jobs
            for name in TENANTS.values():
                own = {each: {job for job in of if job[0] == name} for each, of in jobs.items()}
                own = {each: of for each, of in own.items() if of}
                assert await metric_jobs(one, f"token-{name}") == own
                of_tenant = await api_rows(one, f"token-{name}")
                assert jobs_of(of_tenant) == own
                assert len(of_tenant) == len(own)
            for row in (row for row in rows if str(row["jobs"]) not in shown):
                shown.add(str(row["jobs"]))
                on_surfaces = await shown_jobs(one, row["id"], token_file)
                assert on_surfaces == [jobs.get(row["id"], set())] * 2
    assert seen.keys() == {fault.incident for fault in FAULTS if fault.incident}
    costs = {name: row["lost_gpu_time_seconds"] for name, row in seen.items()}
    assert costs.pop("agent_partition") is None, "nothing is known of the job of a silent node"
    assert None not in costs.values()
    losses = {name: [job["loss"] for job in row["jobs"]] for name, row in seen.items()}
    assert re.match(r"8 GPUs idle for 3 min", losses["ecc_uncorrectable"][0])
    assert costs["ecc_uncorrectable"] == pytest.approx(8 * 230, rel=0.1)
    assert re.match(r"steps take 12\.\d s, before 11\.\d s", losses["thermal_straggler"][0])
    assert re.match(r"no step ends, before 11\.\d s", losses["link_down"][0])
