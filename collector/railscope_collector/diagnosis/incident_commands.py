"""Commands for an incident: drain, remedy, verify and return to service, with the names of its cause.

Classes without an entry have no command that is the same at every site: their action is advice.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from railscope.api import EntityDocument, GpuDocument, JobDocument, NicDocument, NodeDocument

_DRAIN = "scontrol update nodename={node} state=drain reason={reason}"
_CORDON = "kubectl cordon {node}"
_EVICT = "kubectl drain {node} --ignore-daemonsets --delete-emptydir-data"
# A drain of Slurm lets jobs run, also those that hang: scontrol(1). An error of one GPU or NIC leaves the jobs of others alive,
# and a hung job of several nodes would end on all of them: which to end is a decision by job, never by node.
_LET_JOBS_END = (
    _DRAIN,
    "squeue --nodelist={node}  # continue when it is empty; end a job that hangs: scancel JOBID",
    _CORDON,
    "kubectl get pods --all-namespaces --field-selector spec.nodeName={node}  # continue when no job is left",
    f"{_EVICT}  # evicts what is left",
)
# A fault that spreads costs other jobs more than those of its node. `kubectl drain` cordons first: kubectl(1).
_END_JOBS = (
    _DRAIN,
    "squeue --nodelist={node}  # the fault spreads: end each job, do not wait: scancel JOBID",
    f"{_EVICT}  # the fault spreads: evicts the jobs at once; delete pods that it refuses",
)
_RETURN = (
    "railscope nodes {node}  # continue when it reports and is healthy",
    "scontrol update nodename={node} state=resume",
    "kubectl uncordon {node}",
)
_REPAIR = "# repair {node}, start it again, then verify and return it to service"
_REPAIR_LINK = "# clean, reseat or replace cable and transceivers; continue when the link is up"
_REPLACE = "# replace the GPU; only then verify {node} and return it to service"
# nvidia-smi takes the PCI address, which stays when a lost GPU changes the indices of the others. It resets no GPU that a
# process has open, as the agent, DCGM and nvidia-persistenced have: nvidia-smi(1).
_RESET_GPU = (
    "# reset of {pci_address}; on Kubernetes, pods of DaemonSets keep it open: reboot the node in place of the next three lines",
    "ssh {node} sudo systemctl stop railscope-agent nvidia-dcgm nvidia-persistenced",
    "ssh {node} sudo nvidia-smi --gpu-reset -i {pci_address}",
    "ssh {node} sudo systemctl start nvidia-persistenced nvidia-dcgm railscope-agent",
)
# All GPUs and NVSwitches at once, both ends of each link among them; without -i, nvidia-smi resets all: nvidia-smi(1).
_RESET_ALL_GPUS = (
    "# reset of all GPUs; on Kubernetes, pods of DaemonSets keep them open: reboot the node in place of the next three lines",
    "ssh {node} sudo systemctl stop railscope-agent nvidia-dcgm nvidia-persistenced nvidia-fabricmanager",
    "ssh {node} sudo nvidia-smi --gpu-reset",
    "ssh {node} sudo systemctl start nvidia-fabricmanager nvidia-persistenced nvidia-dcgm railscope-agent",
)
# Reloads the driver of the device alone: devlink-dev(8).
_RELOAD_NIC = "ssh {node} sudo devlink dev reload pci/{pci_address}"
_REBOOT = "ssh {node} sudo systemctl reboot"
_SHOW_PCIE = "ssh {node} sudo lspci -vvs {pci_address}"
_SHOW_SENSORS = "ssh {node} sudo ipmitool sdr elist"
_SHOW_AGENT = "ssh {node} sudo journalctl -u railscope-agent -n 50"
# Each record has a directory of its own, also when the fault returns.
_RECORD = (
    "ssh {node} sudo railscope agent record --redact railscope-{node}-$(date +%FT%H%M)",
    "scp -r {node}:railscope-{node}-\\* .  # attach it when the device is returned to its vendor",
)
# Vendors ask for the state before the reset. The script may wait for a driver that hangs; --safe-mode leaves out the parts that do.
_RECORD_GPU = (
    "ssh {node} sudo timeout 600 nvidia-bug-report.sh --safe-mode",
    "scp {node}:nvidia-bug-report.log.gz .",
    *_RECORD,
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
    "gpu_lost": (*_LET_JOBS_END, *_RECORD_GPU, _REBOOT, *_RETURN),
    "gpu_unresponsive": (*_LET_JOBS_END, *_RECORD_GPU, _REBOOT, *_RETURN),
    "ecc_uncorrectable": (*_LET_JOBS_END, *_RECORD_GPU, *_RESET_GPU, *_RETURN),
    "gpu_memory_failed": (*_LET_JOBS_END, *_RECORD_GPU, _REPLACE, *_RETURN),
    "row_remap": (*_LET_JOBS_END, *_RESET_GPU, *_RETURN),
    "nvlink_errors": (
        "ssh {node} nvidia-smi nvlink -e -i {pci_address}", *_LET_JOBS_END, *_RECORD_GPU, *_RESET_GPU, *_RETURN,
    ),
    "xid_event": (
        "ssh {node} sudo railscope health", "# the rest is for the action reset_gpu of {node}; take any other action in its place",
        *_LET_JOBS_END, *_RECORD_GPU, *_RESET_GPU, *_RETURN,
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
    "nic_lost": (
        *_LET_JOBS_END, *_RECORD, _REBOOT,
        "ssh {node} lspci -s {pci_address}  # no line: reseat or replace the NIC, then start {node} again", *_RETURN,
    ),
    "pfc_storm": (*_END_JOBS, *_RECORD, _RELOAD_NIC, *_RETURN),
    "slow_receiver": (_SHOW_PCIE, *_LET_JOBS_END, _RELOAD_NIC, *_RETURN),
    "pcie_bound_receiver": (_SHOW_PCIE, *_LET_JOBS_END, _REPAIR, *_RETURN),
    "pcie_degraded": (_SHOW_PCIE, *_LET_JOBS_END, _REPAIR, *_RETURN),
    **dict.fromkeys(
        ("link_down", "link_flap", "link_speed_low", "transceiver_degraded"),
        (
            "ssh {node} ethtool {interface}", "ssh {node} sudo ethtool -m {interface}",
            *_LET_JOBS_END, _REPAIR_LINK, *_RETURN,
        ),
    ),
    # The claim of a pod is NAMESPACE/POD, that of a Slurm job its number.
    "nccl_hang": (
        "scontrol show job {job}", _COLLECT_DUMPS, "scontrol requeue {job}", "squeue --jobs={job}  # it runs again",
        "kubectl --namespace {namespace} describe pod {pod}", _COLLECT_DUMPS_OF_POD,
        'kubectl --namespace {namespace} delete pod {pod}  # only if its description has "Controlled By": no other pod is started again',
        "kubectl --namespace {namespace} get pods  # its controller has started it again",
        "# copy /run/railscope/flight-recorder from the nodes of {workload}, then restart it",
    ),
    # The pods of a node that does not answer stay in deletion: a drain would wait for them.
    "node_down": (
        "ping -c 3 {node}", "ssh {node} uptime  # if it answers, only its agent is cut off: stop here", _DRAIN, _CORDON,
        "ipmitool -I lanplus -H BMC -U USER -a chassis power status  # BMC and USER of the management controller of {node}",
        "ipmitool -I lanplus -H BMC -U USER -a chassis power cycle  # ends what still runs on {node}", *_RETURN,
    ),
    "agent_partition": ("ssh {node} systemctl status railscope-agent", _SHOW_AGENT),
    "clock_skew": ("ssh {node} timedatectl", "ssh {node} chronyc tracking"),
}  # fmt: skip


_OF_JOBS = frozenset({"job", "namespace", "pod", "workload"})
"""Names of a job: each scheduler has its own commands, and those of others are left out."""


def commands_of(
    incident_class: str, incident_id: str, cause: EntityDocument, *, has_ended: bool = False
) -> Iterator[str]:
    """Yield the commands to type, in their order; of an incident that has ended, those that return its node to service.

    Before the drain, commands only look: one whose name is not known is left out. After it, so are all that follow: a node
    does not return to service without its remedy.
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
    commands = _COMMANDS.get(incident_class, ())
    if has_ended:
        is_drained = _DRAIN in commands and "node" in known
        commands = (
            ("# the fault has ended; if {node} is still drained:", *_RETURN) if is_drained else ()
        )
    is_before_drain = True
    for command in commands:
        is_before_drain = is_before_drain and command != _DRAIN
        try:
            yield _filled(command, known)
        except KeyError as error:
            name = error.args[0]
            if name in _OF_JOBS or is_before_drain:
                continue
            if name in _WORDS and "node" in known:
                yield f"# {_WORDS[name]} is not known: find it before you go on"
            return


_WORDS = {"pci_address": "the PCI address", "interface": "the name of the interface"}


def _job_names(job: JobDocument) -> dict[str, str]:
    if job.source == "slurm":
        return {"job": job.workload}
    namespace, _, pod = job.workload.partition("/")
    if job.source == "kubernetes":
        return {"namespace": namespace, "pod": pod}
    return {"workload": job.workload}


_NAMES = ("node", "pci_address", "interface", "reason", "job", "namespace", "pod", "workload")


def general_commands(incident_class: str) -> list[str]:
    """Return the commands of a class with NODE, PCI_ADDRESS, INTERFACE, REASON, JOB, NAMESPACE, POD and WORKLOAD in place of names."""
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
    if not command.startswith(_REMOTE):
        return command.format_map(names)
    remote, note, text = command.removeprefix(_REMOTE).partition("  # ")
    return (
        _REMOTE.format_map(names)
        + shlex.quote(remote.format_map(names))
        + (note + text).format_map(names)
    )
