"""Commands for an incident in steps, of one scheduler, with the names of its cause.

Classes without a row have no command that is the same at every site: their action is advice.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

from railscope.api import CommandStep, EntityDocument, JobDocument
from railscope_collector.workloads.job_holdings import KUBERNETES, SLURM

_Lines: TypeAlias = tuple[str, ...]
"""Commands of a step with names in braces; lines that begin with # are its comment."""
_Step: TypeAlias = _Lines | Mapping[str, _Lines]
"""Lines, or those of each scheduler; the empty scheduler stands for none or several that claims name."""

_DRAIN = "scontrol update nodename={node} state=drain reason={reason}"
_QUEUE = "squeue --nodelist={node}"
_EVICT = "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data"
_PODS = "kubectl get pods --all-namespaces --field-selector spec.nodeName={node}"
# A drain of Slurm lets jobs run, also those that hang: scontrol(1). An error of one GPU or NIC leaves the jobs of others alive,
# and a hung job of several nodes would end on all of them: which to end is a decision by job, never by node.
_LET_JOBS_END = {
    SLURM: (_DRAIN, _QUEUE, "# Go on when squeue lists no job. End a job that hangs: scancel JOBID."),
    KUBERNETES: ("kubectl cordon {node}", _PODS, _EVICT, "# Type kubectl drain when no job is in the list: it evicts what is left."),
    "": ("# Drain {node} in each of its schedulers. Go on when its jobs have ended.",),
}  # fmt: skip
# A fault that spreads costs other jobs more than those of its node. `kubectl drain` cordons first: kubectl(1).
_END_JOBS = {
    SLURM: (_DRAIN, _QUEUE, "# The fault spreads: do not wait, end each job that squeue lists: scancel JOBID."),
    KUBERNETES: (_EVICT, "# The fault spreads: this evicts the jobs at once. Delete pods that it refuses."),
    "": ("# The fault spreads: drain {node} in each of its schedulers, and end its jobs.",),
}  # fmt: skip
# The pods of a node that does not answer stay in deletion: a drain would wait for them.
_EXCLUDE = {
    SLURM: (_DRAIN,),
    KUBERNETES: ("kubectl cordon {node}",),
    "": ("# Drain {node} in each of its schedulers.",),
}
_RESUME = {
    SLURM: ("scontrol update nodename={node} state=resume",),
    KUBERNETES: ("kubectl uncordon {node}",),
    "": ("# Return {node} to service in each of its schedulers.",),
}
_VERIFY = ("railscope nodes {node}", "# Go on when it reports and is healthy.")
# Each record has a directory of its own, also when the fault returns.
_RECORD = (
    "ssh {node} sudo railscope agent record --redact railscope-{node}-$(date +%FT%H%M)",
    "scp -r {node}:railscope-{node}-\\* .",
    "# Attach the copies when the device is returned to its vendor.",
)
# Vendors ask for the state before the reset. The script may wait for a driver that hangs; --safe-mode leaves out the parts that do.
_RECORD_GPU = (
    "ssh {node} sudo timeout 600 nvidia-bug-report.sh --safe-mode",
    "scp {node}:nvidia-bug-report.log.gz .",
    *_RECORD,
)
_REPAIR = ("# Repair {node}, and start it again.",)
_REPAIR_LINK = ("# Clean, reseat or replace cable and transceivers. Go on when the link is up.",)
_REBOOT = ("ssh {node} sudo systemctl reboot",)
# Reloads the driver of the device alone: devlink-dev(8).
_RELOAD_NIC = ("ssh {node} sudo devlink dev reload pci/{pci_address}",)
_SHOW_PCIE = ("ssh {node} sudo lspci -vvs {pci_address}",)
_SHOW_PORT = ("ssh {node} ethtool {interface}", "ssh {node} sudo ethtool -m {interface}")
_SHOW_SENSORS = "ssh {node} sudo ipmitool sdr elist"
_POWER = "ipmitool -I lanplus -H BMC -U USER -a chassis power"


def _reset(target: str, *services: str) -> _Step:
    """Return the reset of GPUs that no process may have open, as these services have: nvidia-smi(1)."""
    commands = (
        f"ssh {{node}} sudo systemctl stop {' '.join(services)}",
        f"ssh {{node}} sudo nvidia-smi --gpu-reset{target}",
        f"ssh {{node}} sudo systemctl start {' '.join(reversed(services))}",
    )
    with_node = (*_REBOOT, "# Pods of DaemonSets keep GPUs open: they are reset with their node.")
    other = "# If another process keeps a GPU open, reboot {node} instead."
    return {SLURM: commands, KUBERNETES: with_node, "": (*commands, other)}


_SERVICES = "railscope-agent", "nvidia-dcgm", "nvidia-persistenced"
# nvidia-smi takes the PCI address, which stays when a lost GPU changes the indices of the others.
_RESET_GPU = _reset(" -i {pci_address}", *_SERVICES)
# All GPUs and NVSwitches at once, both ends of each link among them; without -i, nvidia-smi resets all: nvidia-smi(1).
_RESET_ALL_GPUS = _reset("", *_SERVICES, "nvidia-fabricmanager")


def _on_node(
    act: _Step, *, check: _Lines = (), drain: _Step = _LET_JOBS_END, record: _Lines = ()
) -> Mapping[str, _Step]:
    return {"check": check, "drain": drain, "record": record, "act": act, "verify": _VERIFY, "resume": _RESUME}  # fmt: skip


# Reads collectives.flight_recorder_directory of the agents at its default. The name of the job is no word of the remote
# command, which the shell of the node would parse again.
_COLLECT_DUMPS = (
    'for node in $(scontrol show hostnames "$(squeue --noheader --format=%N --jobs={workload})"); do '
    'ssh "$node" sudo tar --create --directory=/run/railscope flight-recorder > flight-recorder-{workload}-"$node".tar; done'
)
# A job is known by the part of their names that its pods share, not by these names.
_PODS_OF_JOB = "kubectl --namespace {namespace} get pods"
_RESTART_JOB: Mapping[str, _Step] = {
    "check": {SLURM: ("scontrol show job {workload}",), KUBERNETES: (_PODS_OF_JOB, "# The pods of the job are those with {job} in their names.")},
    "record": {
        SLURM: (_COLLECT_DUMPS,),
        KUBERNETES: ("# Copy /run/railscope/flight-recorder from each pod of {job}: kubectl cp.",),
        "": ("# Copy /run/railscope/flight-recorder from the nodes of {workload}.",),
    },
    "act": {
        SLURM: ("scontrol requeue {workload}",),
        KUBERNETES: ('# Delete each pod of {job} whose description has "Controlled By": no other pod is started again.',),
        "": ("# Restart {workload}.",),
    },
    "verify": {
        SLURM: ("squeue --jobs={workload}", "# It runs again."),
        KUBERNETES: (_PODS_OF_JOB, "# The controller has started them again."),
    },
}  # fmt: skip

REMEDIES: Mapping[str, Mapping[str, _Step]] = {
    "gpu_lost": _on_node(_REBOOT, record=_RECORD_GPU),
    "gpu_unresponsive": _on_node(_REBOOT, record=_RECORD_GPU),
    "ecc_uncorrectable": _on_node(_RESET_GPU, record=_RECORD_GPU),
    "gpu_memory_failed": _on_node(("# Replace the GPU, and start {node} again.",), record=_RECORD_GPU),
    "row_remap": _on_node(_RESET_GPU),
    "nvlink_errors": _on_node(_RESET_GPU, record=_RECORD_GPU, check=("ssh {node} nvidia-smi nvlink -e -i {pci_address}",)),
    "xid_event": _on_node(
        _RESET_GPU, record=_RECORD_GPU,
        check=("ssh {node} sudo railscope health", "# The rest is for a reset of the GPU: take any other action in its place."),
    ),
    "thermal_straggler": _on_node(
        _REPAIR, check=("ssh {node} nvidia-smi -q -d TEMPERATURE,PERFORMANCE -i {pci_address}", _SHOW_SENSORS),
    ),
    "hw_slowdown": _on_node(_REPAIR, check=("ssh {node} nvidia-smi -q -d POWER,PERFORMANCE -i {pci_address}", _SHOW_SENSORS)),
    "gpu_straggler": _on_node(
        ("ssh {node} sudo dcgmi diag --run 3", "# If a test fails, repair {node}."),
        check=("ssh {node} nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE -i {pci_address}",),
    ),
    "nic_lost": _on_node(
        (*_REBOOT, "ssh {node} lspci -s {pci_address}", "# If lspci prints nothing, reseat or replace the NIC, and start {node} again."),
        record=_RECORD,
    ),
    "nic_failed": _on_node(_RELOAD_NIC, record=_RECORD),
    "pfc_storm": _on_node(_RELOAD_NIC, drain=_END_JOBS, record=_RECORD),
    "slow_receiver": _on_node(_RELOAD_NIC, check=_SHOW_PCIE),
    "pcie_bound_receiver": _on_node(_REPAIR, check=_SHOW_PCIE),
    "pcie_degraded": _on_node(_REPAIR, check=_SHOW_PCIE),
    **dict.fromkeys(("link_down", "link_flap", "link_speed_low", "transceiver_degraded"), _on_node(_REPAIR_LINK, check=_SHOW_PORT)),
    "nccl_hang": _RESTART_JOB,
    "node_down": _on_node(
        (
            f"{_POWER} status", f"{_POWER} cycle",
            "# BMC and USER are those of the management controller of {node}. A power cycle ends what still runs on it.",
        ),
        check=("ping -c 3 {node}", "ssh {node} uptime", "# If it answers, only its agent is cut off: stop here."), drain=_EXCLUDE,
    ),
    "agent_partition": {"check": ("ssh {node} systemctl status railscope-agent", "ssh {node} sudo journalctl -u railscope-agent -n 50")},
    "clock_skew": {"check": ("ssh {node} timedatectl", "ssh {node} chronyc tracking")},
    # Of alerts whose remedy no class has.
    "repair": _on_node(_REPAIR),
    "reset_all_gpus": _on_node(_RESET_ALL_GPUS, check=("ssh {node} nvidia-smi nvlink -e",)),
    "restart_fabric": _on_node(
        _RESET_ALL_GPUS,
        check=("ssh {node} sudo systemctl start nvidia-fabricmanager", "# Go on only while {node} has the fault."),
    ),
    "load_rdma_module": _on_node(
        _REPAIR,
        check=(
            "ssh {node} lspci -s {pci_address}", "ssh {node} sudo modprobe mlx5_ib",
            "# mlx5_ib is for NVIDIA, bnxt_re for Broadcom, irdma for Intel. Go on only while {node} lacks the port.",
        ),
    ),
}  # fmt: skip
"""Steps in their order, by class of incidents."""
_ENDED: Mapping[str, _Step] = {
    "verify": ("railscope nodes {node}", "# The fault has ended. If {node} is still drained, go on when it reports and is healthy."),
    "resume": _RESUME,
}  # fmt: skip


def commands_of(
    incident_class: str, incident_id: str, cause: EntityDocument, scheduler: str, *, has_ended: bool = False
) -> Iterator[CommandStep]:  # fmt: skip
    """Yield the steps of an incident, in their order; of one that has ended, those that return its node to service.

    A check that needs an unknown name is left out. Any other step that needs one is the last: a node does not return to service
    without its remedy.
    Names come from agents: each is quoted for the shell, and once more in a command that ssh passes to the shell of the node.
    A name that a program would take for an option has no command.
    """
    known = {"reason": shlex.quote(f"railscope {incident_class} {incident_id}")} | {
        name: shlex.quote(text)
        for name, text in _names_of(cause).items()
        if text and text.isprintable() and not text.startswith("-")
    }
    steps = REMEDIES.get(incident_class, {})
    if has_ended:
        steps = _ENDED if "drain" in steps else {}
    for name, step in steps.items():
        lines = step.get(scheduler, ()) if isinstance(step, Mapping) else step
        if name == "check":
            lines = tuple(line for line in lines if not _lack_name([line], known))
        if _lack_name(lines, known):
            if any("{pci_address}" in line for line in lines):
                yield CommandStep(name, (), _UNKNOWN)
            return
        filled = [_filled(line, known) for line in lines]
        commands = tuple(line for line in filled if not line.startswith("# "))
        comment = " ".join(line[2:] for line in filled if line.startswith("# "))
        if commands or (comment and name != "check"):
            yield CommandStep(name, commands, comment)


_NAMES = ("node", "pci_address", "interface", "workload", "namespace", "job")
_UNKNOWN = "The PCI address of the device is not known: find it before you go on."


def _names_of(cause: EntityDocument) -> Mapping[str, str]:
    if isinstance(cause, JobDocument):
        namespace, _, job = cause.workload.partition("/")
        return {"workload": cause.workload, "namespace": namespace, "job": job}
    return {name: getattr(cause, name, "") for name in ("node", "pci_address", "interface")}


def _lack_name(lines: Iterable[str], known: Mapping[str, str]) -> bool:
    """True if lines need a name that is not known."""
    unknown = (f"{{{name}}}" for name in _NAMES if name not in known)
    return any(name in line for name in unknown for line in lines)


_REMOTE = "ssh {node} "


def _filled(line: str, names: Mapping[str, str]) -> str:
    """Return a line with names, which are quoted already."""
    filled = line.removeprefix(_REMOTE).format_map(names)
    return _REMOTE.format_map(names) + shlex.quote(filled) if line.startswith(_REMOTE) else filled
