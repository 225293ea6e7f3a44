"""Processes on the GPUs of this node and their places: GPU, NIC, rail and holder, for files that jobs write.

A file is attributed to processes of the user that owns it. Containers of several tenants often run as one user, root: then
the directory of the file has to name the workload, as the site that creates the directories does. A file that could
belong to several holders is attributed to none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from railscope.timestamps import SECOND_NS
from railscope_agent.gpus import inventory, process_lists
from railscope_agent.host import JOB_FILES, Host
from railscope_agent.host.job_files import RankProcess
from railscope_agent.sampling.fact_readers import nonempty_facts
from railscope_agent.tenancy.claims import NodeClaim

KEEP_PROCESS_NS = 900 * SECOND_NS
"""Time for which a process that has ended is remembered: jobs write dumps when they fail."""
MAX_PROCESSES = 4096
FindClaims = Callable[[int], tuple[NodeClaim, ...]]
"""Claims that cover a process."""
JobKey = tuple[str, int]
"""Directory of the files, and their owner."""
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class SeenProcess:
    """A process on GPUs, and when it was last listed on the boot clock; the place of one on several GPUs is not known."""

    process: RankProcess
    facts: dict[str, str]
    seen_ns: int
    gpus: frozenset[str] = frozenset()

    @property
    def holder(self) -> tuple[str, ...]:
        """Holder of the process; processes without a claim have the same one."""
        return tuple(self.facts.get(name, "") for name in ("source", "tenant", "owner"))

    @property
    def jobs(self) -> set[str]:
        """Names of its job: by its claim, which a process cannot change, or else by its environment."""
        if workload := self.facts.get("workload"):
            return {workload, workload.rpartition("/")[2]}
        return set(self.process.jobs)


def processes_of_job(
    processes: Iterable[tuple[int, RankProcess]], job: str, user: int
) -> dict[int, int]:
    """Return the process of each rank of a job of a user. Ranks with several candidates are left out.

    A job without a name, or whose name no process has, is that of all processes of its user.
    """
    of_user = [(pid, process) for pid, process in processes if process.user == user]
    named = [(pid, process) for pid, process in of_user if job and job in process.jobs]
    by_rank: dict[int, list[int]] = {}
    for pid, process in named or of_user:
        if process.rank is not None:
            by_rank.setdefault(process.rank, []).append(pid)
    return {rank: pids[0] for rank, pids in by_rank.items() if len(pids) == 1}


@dataclass
class RankPlaces:
    """Processes on the GPUs of this node by their number."""

    gpus: inventory.GpuInventory
    lists: process_lists.ProcessLists
    claims: FindClaims
    processes: dict[int, SeenProcess] = field(default_factory=dict)

    def update(self, host: Host) -> None:
        """Read the processes of the latest lists; forget those that ended long ago."""
        now_ns = host.clock.now().boot_ns
        processes = dict(self.processes)  # replaced as a whole: it is read on several threads
        by_pid: dict[int, list[inventory.GpuDevice]] = {}
        listed_ns: dict[int, int] = {}
        for gpu in self.gpus.gpus.values():
            listed = self.lists.get(gpu.entity.key[0])
            if listed is None:
                continue
            for pid in listed.processes:
                by_pid.setdefault(pid, []).append(gpu)
                listed_ns[pid] = min(listed.listed.boot_ns, listed_ns.get(pid, now_ns))
        for pid, gpus in by_pid.items():
            try:
                answer = host.call(JOB_FILES, "process", pid)
            except OSError:
                continue  # it has ended
            process = msgspec.convert(answer, RankProcess | None)
            if process and process.started_ns <= listed_ns[pid]:  # not another one of this number
                place = self._place(host, gpus[0]) if len(gpus) == 1 else {}
                facts = place | self._holder(pid) | {"pid": str(pid)}
                uuids = frozenset(gpu.entity.key[0] for gpu in gpus)
                processes[pid] = SeenProcess(process, facts, now_ns, uuids)
        recent = sorted(processes.items(), key=lambda item: item[1].seen_ns)[-MAX_PROCESSES:]
        self.processes = {p: s for p, s in recent if now_ns - s.seen_ns < KEEP_PROCESS_NS}

    def _place(self, host: Host, gpu: inventory.GpuDevice) -> dict[str, str]:
        network = self.gpus.wiring.scan(host)
        nic = network.device_at(network.nic_by_gpu.get(gpu.pci_address, ""))
        facts = gpu.entity.facts
        return nonempty_facts(
            gpu=gpu.entity.key[0],
            gpu_index=facts.get("index", ""),
            interface=" ".join(nic.interfaces[:1]),
            rdma_device=" ".join(nic.rdma[:1]),
            rail=facts.get("rail", ""),
        )

    def _holder(self, pid: int) -> dict[str, str]:
        """Return the claim with the highest authority that covers a process."""
        claim = max(self.claims(pid), key=lambda claim: claim.authority, default=None)
        if claim is None:
            return {}
        return nonempty_facts(
            source=claim.source, workload=claim.workload, owner=claim.owner, tenant=claim.tenant
        )

    @property
    def users(self) -> set[int]:
        """Users with a process that is or recently was on a GPU."""
        return {listed.process.user for listed in self.processes.values()}

    def candidates(self, key: JobKey) -> dict[int, SeenProcess]:
        """Return the processes of a job; none if they have several holders.

        A directory that names no workload is that of all processes of its user.
        """
        job, user = key
        of_user = {
            pid: listed for pid, listed in self.processes.items() if listed.process.user == user
        }
        named = {pid: listed for pid, listed in of_user.items() if job and job in listed.jobs}
        found = named or of_user
        return found if len({listed.holder for listed in found.values()}) == 1 else {}

    def is_shared(self, key: JobKey) -> bool:
        """True if a directory names none of several jobs of its user: equal ranks of two jobs have the same files.

        Processes without a rank do not count, unless no environment of the user could be read: then claims separate the jobs.
        """
        job, user = key
        of_user = [listed for listed in self.processes.values() if listed.process.user == user]
        ranked = [listed for listed in of_user if listed.process.rank is not None] or of_user
        names = {frozenset(listed.process.jobs or listed.jobs) for listed in ranked}
        return len(names) > 1 and not any(job and job in listed.jobs for listed in ranked)

    def of_job(self, key: JobKey) -> dict[int, dict[str, str]]:
        """Return the facts of the process of each rank of a job."""
        found = self.candidates(key)
        by_rank = processes_of_job(((pid, listed.process) for pid, listed in found.items()), *key)
        return {rank: found[pid].facts for rank, pid in by_rank.items()}

    def of_own_pid(self, key: JobKey, own_pid: int) -> dict[str, str]:
        """Return the facts of the only process of a job with a number in its own namespace."""
        found = [s.facts for s in self.candidates(key).values() if s.process.own_pid == own_pid]
        # Numbers in namespaces repeat: two containers of a job may both have a process 1.
        return found[0] if len(found) == 1 else {}
