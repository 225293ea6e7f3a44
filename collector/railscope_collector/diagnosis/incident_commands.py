"""Commands for an incident: drain, remedy, verify and return to service, with the names of its cause.

Classes without an entry have no command that is the same at every site: their action is advice.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from railscope.api import EntityDocument, GpuDocument, JobDocument, NicDocument, NodeDocument

_DRAIN = "scontrol update nodename={node} state=drain reason={reason}"
_WAIT = "squeue --nodelist={node}  # continue when it is empty"
_EVICT = "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data"
_CORDON = "kubectl cordon {node}"
# A drain of Slurm lets jobs run, also those that hang: scontrol(1).
_CANCEL = "scancel --nodelist={node}  # ends the jobs of the node: they have failed or hang"
_STOP_JOBS = (_DRAIN, _CANCEL, _WAIT, _EVICT)
_WAIT_FOR_JOBS = f"{_WAIT}; end jobs that hang with scancel"
_WAIT_FOR_PODS = "kubectl get pods --all-namespaces --field-selector spec.nodeName={node}  # continue when no job is left"
_LET_JOBS_END = (_DRAIN, _WAIT_FOR_JOBS, _CORDON, _WAIT_FOR_PODS)
"""For a fault with which jobs go on: Slurm drains a node after its jobs, Kubernetes evicts pods at once."""
_RETURN = (
    "railscope nodes {node}",
    "scontrol update nodename={node} state=resume",
    "kubectl uncordon {node}",
)
_REPAIR = "# repair {node}, start it again, then verify and return it to service"
# nvidia-smi takes the PCI address, which stays when a lost GPU changes the indices of the others. It resets no GPU that a
# process has open, as the agent, DCGM and nvidia-persistenced have: nvidia-smi(1).
_RESET_GPU = (
    "ssh {node} sudo systemctl stop railscope-agent nvidia-dcgm nvidia-persistenced",
    "ssh {node} sudo nvidia-smi --gpu-reset -i {pci_address}",
    "ssh {node} sudo systemctl start nvidia-persistenced nvidia-dcgm railscope-agent",
)
# All GPUs and NVSwitches at once, both ends of each link among them; without -i, nvidia-smi resets all: nvidia-smi(1).
_RESET_ALL_GPUS = (
    "ssh {node} sudo systemctl stop railscope-agent nvidia-dcgm nvidia-persistenced nvidia-fabricmanager",
    "ssh {node} sudo nvidia-smi --gpu-reset",
    "ssh {node} sudo systemctl start nvidia-fabricmanager nvidia-persistenced nvidia-dcgm railscope-agent",
)
# Reloads the driver of the device alone: devlink-dev(8).
_RELOAD_NIC = "ssh {node} sudo devlink dev reload pci/{pci_address}"
_REBOOT = "ssh {node} sudo systemctl reboot"
_SHOW_LINK = ("ssh {node} ethtool {interface}", "ssh {node} sudo ethtool -m {interface}")
_SHOW_PCIE = "ssh {node} sudo lspci -vvs {pci_address}"
_SHOW_SENSORS = "ssh {node} sudo ipmitool sdr elist"
_SHOW_AGENT = "ssh {node} sudo journalctl -u railscope-agent -n 50"
# To attach when the device is returned to its vendor, who asks for the state before the reset.
_RECORD = (
    "ssh {node} sudo nvidia-bug-report.sh",
    # Each record has a directory of its own, also when the fault returns.
    "ssh {node} sudo railscope agent record --redact railscope-{node}-$(date +%FT%H%M)",
)
_REMOTE = "ssh {node} "
# Reads collectives.flight_recorder_directory of the agents at its default. The name of the job is no word of the remote
# command, which the shell of the node would parse again.
_COLLECT_DUMPS = (
    'for node in $(scontrol show hostnames "$(squeue --noheader --format=%N --jobs={job})"); do '
    'ssh "$node" sudo tar --create --directory=/run/railscope flight-recorder > flight-recorder-{job}-"$node".tar; done'
)
_COLLECT_DUMPS_OF_POD = (
    "kubectl --namespace {namespace} cp {pod}:/run/railscope/flight-recorder flight-recorder-{pod}"
)

_COMMANDS: Mapping[str, Sequence[str]] = {
    "gpu_lost": (*_STOP_JOBS, *_RECORD, _REBOOT, *_RETURN),
    "gpu_unresponsive": (*_STOP_JOBS, *_RECORD, _REBOOT, *_RETURN),
    "ecc_uncorrectable": (*_STOP_JOBS, *_RECORD, *_RESET_GPU, *_RETURN),
    "row_remap": (*_LET_JOBS_END, *_RESET_GPU, *_RETURN),
    "nvlink_errors": (*_LET_JOBS_END, "ssh {node} nvidia-smi nvlink -e -i {pci_address}", *_RESET_GPU, *_RETURN),
    "xid_event": (
        "ssh {node} sudo railscope health", "# the rest is for the action reset_gpu of {node}; take any other action in its place",
        *_LET_JOBS_END, *_RECORD, *_RESET_GPU, *_RETURN,
    ),
    "thermal_straggler": (
        "ssh {node} nvidia-smi -q -d TEMPERATURE,PERFORMANCE -i {pci_address}", _SHOW_SENSORS,
        *_LET_JOBS_END, _REPAIR, *_RETURN,
    ),
    "hw_slowdown": (
        "ssh {node} nvidia-smi -q -d POWER,PERFORMANCE -i {pci_address}", _SHOW_SENSORS,
        *_LET_JOBS_END, _REPAIR, *_RETURN,
    ),
    "gpu_straggler": (
        "ssh {node} nvidia-smi -q -d CLOCK,PERFORMANCE,POWER,TEMPERATURE -i {pci_address}", *_LET_JOBS_END,
        "ssh {node} sudo dcgmi diag --run 3", "# if a test fails, repair {node}; then verify and return it to service", *_RETURN,
    ),
    "nic_lost": (*_STOP_JOBS, "ssh {node} lspci -s {pci_address}", _REBOOT, *_RETURN),
    "pfc_storm": (*_STOP_JOBS, _RELOAD_NIC, *_RETURN),
    "slow_receiver": (_SHOW_PCIE, *_LET_JOBS_END, _RELOAD_NIC, *_RETURN),
    "pcie_bound_receiver": (_SHOW_PCIE, *_LET_JOBS_END),
    "pcie_degraded": (_SHOW_PCIE, *_LET_JOBS_END),
    "link_down": _SHOW_LINK,
    "link_flap": _SHOW_LINK,
    "link_speed_low": _SHOW_LINK,
    "transceiver_degraded": _SHOW_LINK,
    # The claim of a pod is NAMESPACE/POD, that of a Slurm job its number.
    "nccl_hang": (
        "scontrol show job {job}", _COLLECT_DUMPS, "scontrol requeue {job}",
        "kubectl --namespace {namespace} describe pod {pod}", _COLLECT_DUMPS_OF_POD, "kubectl --namespace {namespace} delete pod {pod}",
    ),
    "node_down": ("ping -c 3 {node}", "ssh {node} uptime", _DRAIN, _EVICT),
    "agent_partition": ("ssh {node} systemctl status railscope-agent", _SHOW_AGENT),
    "clock_skew": ("ssh {node} timedatectl", "ssh {node} chronyc tracking"),
}  # fmt: skip


def commands_of(incident_class: str, incident_id: str, cause: EntityDocument) -> Iterator[str]:
    """Yield the commands to type, in their order; those that need a name which is not known are left out.

    Names come from agents: each is quoted for the shell, and once more in a command that ssh passes to the shell of the node.
    A name that a program would take for an option has no command.
    """
    names = {"reason": f"railscope {incident_class} {incident_id}"}
    if isinstance(cause, NicDocument | GpuDocument):
        names |= {"node": cause.node, "pci_address": cause.pci_address}
    if isinstance(cause, NicDocument):
        names["interface"] = cause.interface
    if isinstance(cause, NodeDocument):
        names["node"] = cause.node
    if isinstance(cause, JobDocument):
        names |= _job_names(cause)
    known = {
        name: shlex.quote(text)
        for name, text in names.items()
        if text and text.isprintable() and not text.startswith("-")
    }
    for command in _COMMANDS.get(incident_class, ()):
        try:
            yield _filled(command, known)
        except KeyError:
            continue


def _job_names(job: JobDocument) -> dict[str, str]:
    if job.source == "slurm":
        return {"job": job.workload}
    namespace, _, pod = job.workload.partition("/")
    return {"namespace": namespace, "pod": pod} if job.source == "kubernetes" else {}


_NAMES = ("node", "pci_address", "interface", "reason", "job", "namespace", "pod")


def general_commands(incident_class: str) -> list[str]:
    """Return the commands of a class with NODE, PCI_ADDRESS, INTERFACE, REASON, JOB, NAMESPACE and POD in place of names."""
    return _general(_COMMANDS.get(incident_class, ()))


_REMEDIES: Mapping[str, Sequence[str]] = {
    "repair": (*_LET_JOBS_END, _REPAIR, *_RETURN),
    "reset_all_gpus": ("ssh {node} nvidia-smi nvlink -e", *_LET_JOBS_END, *_RESET_ALL_GPUS, *_RETURN),
    "restart_fabric": (
        "ssh {node} sudo systemctl start nvidia-fabricmanager", "# continue only while {node} has the fault",
        *_LET_JOBS_END, *_RESET_ALL_GPUS, *_RETURN,
    ),
    "load_rdma_module": (
        "ssh {node} lspci -s {pci_address}", "# mlx5_ib for NVIDIA, bnxt_re for Broadcom, irdma for Intel", "ssh {node} sudo modprobe mlx5_ib",
        "# continue only while {node} lacks the port", *_LET_JOBS_END, _REPAIR, *_RETURN,
    ),
}  # fmt: skip
"""Commands of alerts whose remedy no class of incidents has."""


def general_remedy(name: str) -> list[str]:
    """Return the commands of a remedy that no class of incidents has, with names as those of a class."""
    return _general(_REMEDIES[name])


def _general(commands: Sequence[str]) -> list[str]:
    names = {name: name.upper() for name in _NAMES}
    return [_filled(command, names) for command in commands]


def _filled(command: str, names: Mapping[str, str]) -> str:
    """Return a command with names, which are quoted already. Raises KeyError without one."""
    line = command.format_map(names)
    if not command.startswith(_REMOTE):
        return line
    remote = command.removeprefix(_REMOTE).format_map(names)
    return _REMOTE.format_map(names) + shlex.quote(remote)
