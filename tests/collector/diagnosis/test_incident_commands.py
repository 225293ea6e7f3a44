"""Commands of incidents: for a shell, with the names of the cause."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path, PurePath

import pytest
from hypothesis import given, strategies as st

from railscope.api import (
    CommandStep,
    EntityDocument,
    GpuDocument,
    JobDocument,
    LeafDocument,
    NicDocument,
    NodeDocument,
)
from railscope_agent.collective_settings import CollectiveSettings
from railscope_collector.diagnosis.incident_classes import AREAS, CLASSES
from railscope_collector.diagnosis.incident_commands import REMEDIES, commands_of
from railscope_simulator import NodeSpec, simulate

GPU = GpuDocument("gpu-node-1", 4, "GPU-1b98b982", "0000:9d:00.0")
NIC = NicDocument("gpu-node-1", "ens4f0np0", "mlx5_3", "0000:5e:00.0", 3, "leaf-3", "Ethernet8")
NODE = NodeDocument("gpu-node-1")
JOBS = (
    JobDocument("language", "slurm", "60937"),
    JobDocument("vision", "kubernetes", "research/train"),
)
OTHER_JOB = JobDocument("language", "file", "train")
SCHEDULERS = ("slurm", "kubernetes", "")
PAGING = sorted(
    {name for name, each in CLASSES.items() if each.severity == "critical"}
    | {name for name, area in AREAS.items() if area == "gpu"}
)
"""Those of GPUs all page: a warning becomes critical when the GPU has failed."""


def lines_of(name: str, cause: EntityDocument, scheduler: str = "slurm") -> list[str]:
    """Commands of all steps."""
    return [line for step in commands_of(name, "a", cause, scheduler) for line in step.commands]


def steps_of(name: str, scheduler: str) -> dict[str, CommandStep]:
    """Steps of a class with all names known."""
    job = next((job for job in JOBS if job.source == scheduler), OTHER_JOB)
    cause = job if AREAS.get(name) == "job" else NIC
    return {step.step: step for step in commands_of(name, "a", cause, scheduler)}


class SimulatedNames:
    """Names of a simulated node as its capture has them: what a shell on the node would accept."""

    def __init__(self) -> None:
        moment = simulate(NodeSpec("gpu-node-1"), 1).moments[0]
        bus = [moment.calls[f"nvml.nvmlDeviceGetPciInfo({index})"] for index in range(8)]
        gpus = [each["busIdLegacy"].lower() for each in bus]
        devices = {PurePath(link).name for link in moment.links.values() if isinstance(link, str)}
        node = {"gpu-node-1"}
        self.of_program: dict[str, set[str]] = {
            "nvidia-smi": set(gpus),
            "devlink": devices,
            "lspci": devices,
            "ethtool": set(moment.names["/sys/class/net"]),
            "scontrol": node | {"60937"},
            "kubectl": node | {"pods"},
            "squeue": node | {"60937"},
            **dict.fromkeys(("railscope", "ping", "scp"), node),
        }
        port = "/sys/class/infiniband/mlx5_0/device"
        (interface,) = moment.names[f"{port}/net"]
        nic = PurePath(moment.links[port]).name
        self.causes: dict[str, tuple[EntityDocument, ...]] = {
            "gpu": (GpuDocument("gpu-node-1", 4, "", gpus[4]),),
            "network": (NicDocument("gpu-node-1", interface, "mlx5_0", nic, 0, "", ""),),
            "node": (NODE,),
            "job": JOBS,
        }


@pytest.fixture(scope="module")
def names() -> SimulatedNames:
    return SimulatedNames()


def checked_programs(command: str, names: SimulatedNames) -> set[str]:
    """Programs of a command, after its subject was compared with the node and its jobs."""
    if command.startswith("for "):
        return set()
    words = shlex.split(command.replace("-$(date +%FT%H%M)", ""))
    program, *words = [word for word in words if word != "sudo"]
    if program == "ssh":
        assert words[0] == "gpu-node-1"
        return {"ssh", *checked_programs(words[1], names)}
    assigned = [
        word.rpartition("=")[2]
        for word in words
        if word.startswith(("nodename", "--nodelist", "--jobs"))
    ]
    options = [word for word in words if word.startswith("-")]
    plain = [word for word in words if not word.startswith("-") and "=" not in word]
    if program == "timeout":
        return checked_programs(shlex.join(words[1:]), names)
    if program in SCRIPTS or [program, *words] == ["railscope", "health"]:
        return {program}
    if program == "scp":
        plain = [plain[0].partition(":")[0]]
    subject = assigned[0] if assigned else plain[-1].removeprefix("railscope-")
    if program == "kubectl" and options[:1] == ["--namespace"]:
        assert plain == ["research", "get", "pods"]
        return {program}
    assert subject.removeprefix("pci/") in names.of_program[program], command
    return {program}


SCRIPTS = {"dcgmi", "ipmitool", "nvidia-bug-report.sh", "systemctl", "uptime"}
"""Programs without a name of a device."""


@pytest.mark.parametrize("scheduler", ["slurm", "kubernetes"])
@pytest.mark.parametrize("name", PAGING)
def test_commands_of_a_class_that_pages_are_valid_on_a_simulated_node(
    name: str, scheduler: str, names: SimulatedNames
) -> None:
    for cause in names.causes[AREAS.get(name, "network")]:
        of_cause = cause.source if isinstance(cause, JobDocument) else scheduler
        used: set[str] = set()
        for command in lines_of(name, cause, of_cause):
            assert "{" not in command
            used |= checked_programs(command, names)
        other = {"scontrol", "squeue"} if of_cause == "kubernetes" else {"kubectl"}
        assert used
        assert not used & other, "commands of one scheduler"


def test_commands_name_the_device_and_the_incident() -> None:
    drain, *_, act, verify, resume = commands_of("ecc_uncorrectable", "b1d0ed7ec447", GPU, "slurm")
    assert drain.commands[0] == (
        "scontrol update nodename=gpu-node-1 state=drain reason='railscope ecc_uncorrectable b1d0ed7ec447'"
    )
    assert "ssh gpu-node-1 'sudo nvidia-smi --gpu-reset -i 0000:9d:00.0'" in act.commands
    assert verify.comment == "Go on when it reports and is healthy."
    assert resume.commands == ("scontrol update nodename=gpu-node-1 state=resume",)
    assert "ssh gpu-node-1 'sudo ethtool -m ens4f0np0'" in lines_of("link_down", NIC)


@pytest.mark.parametrize("cause", [NODE, LeafDocument("leaf-3", 0, 3), GpuDocument("", 4, "", "")])
@pytest.mark.parametrize("name", sorted(CLASSES))
def test_without_the_names_of_its_remedy_no_node_returns_and_no_service_stays_stopped(
    name: str, cause: EntityDocument
) -> None:
    steps = list(commands_of(name, "a", cause, "slurm"))
    remedies = ("gpu-reset", "devlink dev reload", "lspci -s")
    complete = " ".join(line for step in steps_of(name, "slurm").values() for line in step.commands)
    if any(remedy in complete for remedy in remedies):
        found = " ".join(line for step in steps for line in step.commands)
        assert not any(text in found for text in (*remedies, "state=resume", "systemctl stop"))
        if isinstance(cause, NodeDocument):
            assert steps[-1].comment.endswith("find it before you go on.")
    assert bool(steps) is (isinstance(cause, NodeDocument) and "gpu-node-1" in complete)


def test_an_incident_that_has_ended_has_commands_of_return_only() -> None:
    verify, resume = commands_of("ecc_uncorrectable", "a", GPU, "slurm", has_ended=True)
    assert verify.comment.startswith("The fault has ended. If gpu-node-1 is still drained,")
    assert resume.commands == ("scontrol update nodename=gpu-node-1 state=resume",)
    assert not list(commands_of("nccl_hang", "a", JOBS[0], "slurm", has_ended=True))
    unnamed = GpuDocument("", 4, "", "")
    assert not list(commands_of("gpu_lost", "a", unnamed, "slurm", has_ended=True))


@given(st.text(max_size=20))
def test_a_hostile_name_is_one_word_of_a_command_or_none(name: str) -> None:
    nic = NicDocument("n", name, "", "", None, "", "")
    for command in lines_of("link_down", nic):
        if "ethtool" in command:
            *_, remote = shlex.split(command)
            assert shlex.split(remote)[-1] == name, "the shell of the node parses it again"
            assert not name.startswith("-")


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", sorted(REMEDIES))
def test_a_node_is_recorded_before_its_remedy_and_verified_before_it_returns(
    name: str, scheduler: str
) -> None:
    steps = steps_of(name, scheduler)
    order = ["check", "drain", "record", "act", "verify", "resume"]
    assert [*steps] == [each for each in order if each in steps]
    if "drain" in steps:
        assert steps.keys() >= {"act", "verify", "resume"}
        assert steps["act"].commands or steps["act"].comment, "it would return with its fault"


def test_dumps_are_copied_from_the_directory_of_the_agents() -> None:
    directory = CollectiveSettings().flight_recorder_directory
    (of_job,) = steps_of("nccl_hang", "slurm")["record"].commands
    assert directory in of_job.replace(
        f"{PurePath(directory).parent} ", f"{PurePath(directory).parent}/"
    )
    for scheduler in ("", "kubernetes"):
        assert directory in steps_of("nccl_hang", scheduler)["record"].comment


SLURM = """\
squeue() { printf '%s\\n' "$3" > squeue.txt; echo 'gpu-node-[1-2]'; }
scontrol() { [ "$3" = 'gpu-node-[1-2]' ] && printf 'gpu-node-1\\ngpu-node-2\\n'; }
ssh() { echo "$*"; }
"""
"""Commands of Slurm with a job on two nodes, and ssh that prints its arguments."""


@pytest.mark.parametrize("number", ["60937", "60937_4", "1 2", "1'$(touch hit)", '"; touch hit; "'])
def test_dumps_of_each_node_are_copied_whatever_the_name_of_the_job(
    number: str, tmp_path: Path
) -> None:
    job = JobDocument("language", "slurm", number)
    (command,) = (each for each in lines_of("nccl_hang", job) if each.startswith("for "))
    subprocess.run(["bash", "-c", SLURM + command], cwd=tmp_path, check=True, timeout=30)
    assert (tmp_path / "squeue.txt").read_text() == f"--jobs={number}\n"
    for node in ("gpu-node-1", "gpu-node-2"):
        copied = (tmp_path / f"flight-recorder-{number}-{node}.tar").read_text()
        assert copied == f"{node} sudo tar --create --directory=/run/railscope flight-recorder\n"
    assert len(list(tmp_path.iterdir())) == 3
