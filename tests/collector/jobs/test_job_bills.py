"""A cluster billed by its job lists, as text, through the command line.

job NUMBER ACCOUNT FROM-TO GPUS       a row of sacct for n1, in hours after the start of December 2025; no end: it runs
cockpit NUMBER PROJECT FROM-TO GPU    a job of ClusterCockpit on GPU 1 or 2 of n1
row TEXT                              a line as it stands
import PERIOD option=...              the list so far, which ends here: as_of, source, strict, replace, real (GPUs of the list); prints what is
                                      said about the ledger and wrong lines
tenant NAME ACCOUNT FROM              a row of the file of tenants, from a day of December on
prices option=...                     2 EUR per hour; `minimum` in hours, `later` from December 11 on
close PERIOD                          prints the amount of each tenant, or why it is not closed
statement TENANT PERIOD LINE          the lines of the statement with a word
reconcile PERIOD option=...           the list so far against the ledger: prints jobs that differ and what is not compared
held                                  GPU-hours of tenants in the ledger
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import CliRunner
from support.job_lists import GPU_1, GPU_2, tenant_hours
from support.stories import Story

from railscope.cli import root
from railscope_collector.ledger.ledger_store import Ledger
from railscope_collector.metering.units import parse_period
from railscope_collector.tables import metadata

S, HOUR = 1_000_000_000, 3600
START = parse_period("2025-12").start_ns // S
HEADER = "JobIDRaw|User|Account|Start|End|NodeList|AllocTRES"
PRICES = """version = 1
published = 2024-01-01T00:00:00Z
currency = "EUR"
"""
PRICE = """[[price]]
sku = "h100"
tariff = "allocated"
nano_per_gpu_hour = {nano}
from = {start}
version = 1
"""


@dataclass
class Played:
    """A directory with a list, a ledger, prices and books."""

    directory: Path
    rows: list[str] = field(default_factory=list)
    tenants: str = "tenant,source,owner,from,to\n"

    def run(self, command: str) -> list[str]:
        name, *words = command.split()
        if name == "row":
            self.rows.append(command.removeprefix("row "))
            return []
        options = dict(word.split("=", 1) for word in words if "=" in word)
        return getattr(self, "_" + name)(*(w for w in words if "=" not in w), **options) or []

    def bill(self, *arguments: str) -> tuple[int, list[str]]:
        url = f"sqlite:///{self.directory / 'ledger.sqlite'}"
        found = CliRunner().invoke(root, ["bill", *arguments, "--ledger", url])
        return found.exit_code, found.output.replace(f"{self.directory}/", "").splitlines()

    def file(self, name: str, text: str) -> str:
        (self.directory / name).write_text(text)
        return str(self.directory / name)

    def list(self) -> str:
        text, self.rows = "\n".join([*self.rows, ""]), []
        return self.file("list", text)

    def _job(self, number: str, account: str, when: str, gpus: str = "1") -> None:
        first, last = when.split("-")
        end = str(START + round(float(last) * HOUR)) if last else "Unknown"
        self.rows = self.rows or [HEADER]
        begin = START + round(float(first) * HOUR)
        self.rows.append(f"{number}|u|{account}|{begin}|{end}|n1|cpu=1,gres/gpu={gpus}")

    def _cockpit(self, number: str, project: str, when: str, gpu: str = "1", **more: str) -> None:
        first, last = when.split("-")
        job = {
            "jobId": int(number), "cluster": "alex", "project": project, "user": "u", "numAcc": 1,
            "startTime": START + int(first) * HOUR, "duration": (int(last or first) - int(first)) * HOUR,
            "jobState": "completed" if last else "running",
            "resources": [{"hostname": "n1", "accelerators": [{"1": GPU_1, "2": GPU_2}[gpu]]}],
        }  # fmt: skip
        self.rows.append(json.dumps(job | more))

    def _tenant(self, name: str, account: str, day: str = "1") -> None:
        self.tenants = (
            self.tenants.replace(",\n", f",2025-12-{int(day):02}T00:00:00Z\n")
            if f",{account}," in self.tenants
            else self.tenants
        )
        start = "2025-01-01T00:00:00Z" if day == "1" else f"2025-12-{int(day):02}T00:00:00Z"
        self.tenants += f"{name},slurm,{account},{start},\n"

    def _import(self, period: str, **options: str) -> list[str]:
        files = (
            ["--tenants", self.file("tenants.csv", self.tenants)]
            if self.tenants.count("\n") > 1
            else []
        )
        counted = [] if "real" in options else ["--placeholder-gpus"]
        named = {"--as-of": options.get("as_of"), "--source": options.get("source")}
        asked = [word for option, value in named.items() if value for word in (option, value)]
        flags = [f"--{name}" for name in ("strict", "replace") if name in options]
        _, lines = self.bill(
            "import-jobs", self.list(), "--period", period, "--treat-as-observed", "--sku", "h100",
            *files, *counted, *asked, *flags,
        )  # fmt: skip
        shown = [
            line
            for line in lines
            if line.startswith(("ledger:", "NOT", "  line", "Error", "jobs that had"))
        ]
        return [line for line in shown if not line.endswith(": 0")]

    def _prices(self, minimum: str = "0", **options: str) -> list[str]:
        first = (
            PRICE.format(nano=2 * 10**9, start="2024-01-01T00:00:00Z")
            + f"minimum_seconds = {int(minimum) * HOUR}\n"
        )
        if "later" in options:
            change = "2025-12-11T00:00:00Z"
            first += f"at_claim_start = true\nto = {change}\n" + PRICE.format(
                nano=int(options["later"]) * 10**9, start=change
            )
        status, lines = self.bill("prices", "publish", self.file("prices.toml", PRICES + first))
        return lines if status else []

    def _close(self, period: str) -> list[str]:
        _, lines = self.bill("close", period)
        amounts = [
            " ".join((line.split()[0], line.split()[-2])) for line in lines if line.endswith("EUR")
        ]
        return amounts + [
            line for line in lines if line.startswith(("Error", "incomplete", "  line"))
        ]

    def _statement(self, tenant: str, period: str, word: str) -> list[str]:
        return [
            " ".join(line.split())
            for line in self.bill("statement", tenant, period)[1]
            if line.startswith(word)
        ]

    def _reconcile(self, period: str, **options: str) -> list[str]:
        given = ["--source", options["source"]] if "source" in options else []
        files = (
            ["--tenants", self.file("tenants.csv", self.tenants)]
            if self.tenants.count("\n") > 1
            else []
        )
        _, lines = self.bill("reconcile", period, "--slurm", self.list(), *files, *given)
        return [
            line
            for line in lines
            if line.startswith(("jobs that", "  job", "not compared", "NOT", "  list", "Error"))
        ]

    def _held(self) -> list[str]:
        ledger = Ledger.open(f"sqlite:///{self.directory / 'ledger.sqlite'}", metadata)
        found = tenant_hours(ledger)
        ledger.close()
        return [f"{tenant} {hours}" for tenant, hours in sorted(found.items())]


def test_job_bill(story: Story, tmp_path: Path) -> None:
    story.play(Played(tmp_path).run)
