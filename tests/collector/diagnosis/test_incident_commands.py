"""Commands of incidents: for a shell, with the names of the cause."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path, PurePath

import pytest
from hypothesis import given, strategies as st

from railscope.api import (
    EntityDocument,
    GpuDocument,
    JobDocument,
    LeafDocument,
    NicDocument,
    NodeDocument,
)
from railscope_agent.collective_settings import CollectiveSettings
from railscope_collector.diagnosis.incident_classes import AREAS, CLASSES
from railscope_collector.diagnosis.incident_commands import commands_of, general_commands
from railscope_collector.diagnosis.quantities import LIMITS
from railscope_simulator import NodeSpec, simulate

GPU = GpuDocument("gpu-node-1", 4, "GPU-1b98b982", "0000:9d:00.0")
NIC = NicDocument("gpu-node-1", "ens4f0np0", "mlx5_3", "0000:5e:00.0", 3, "leaf-3", "Ethernet8")
NODE = NodeDocument("gpu-node-1")
JOBS = (
    JobDocument("language", "slurm", "60937"),
    JobDocument("vision", "kubernetes", "research/train-0"),
)
PAGING = sorted(
    {name for name, each in CLASSES.items() if each.severity == "critical"}
    | {limit.incident for limit in LIMITS if limit.severity == "critical"}
    | {name for name, area in AREAS.items() if area == "gpu"}
)
"""Those of GPUs all page: a warning becomes critical when the GPU has failed."""


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
            "kubectl pod": {"research/train-0"},
            **dict.fromkeys(("railscope", "ping", "squeue", "scancel"), node),
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
    if command.startswith(("# ", "for ")):
        return set()
    words = shlex.split(command.replace("-$(date +%FT%H%M)", ""), comments=True)
    program, *words = [word for word in words if word != "sudo"]
    if program == "ssh":
        assert words[0] == "gpu-node-1"
        return {"ssh", *checked_programs(words[1], names)}
    assigned = [
        word.rpartition("=")[2] for word in words if word.startswith(("nodename", "--nodelist"))
    ]
    options = [word for word in words if word.startswith("-")]
    plain = [word for word in words if not word.startswith("-") and "=" not in word]
    if program in SCRIPTS or [program, *words] == ["railscope", "health"]:
        return {program}
    subject = assigned[0] if assigned else plain[-1].removeprefix("railscope-")
    if program == "kubectl" and options[:1] == ["--namespace"]:
        pod = subject.removeprefix("flight-recorder-")
        program, subject = "kubectl pod", f"{plain[0]}/{pod}"
    assert subject.removeprefix("pci/") in names.of_program[program], command
    return {program}


SCRIPTS = {"dcgmi", "ipmitool", "nvidia-bug-report.sh", "systemctl", "uptime"}
"""Programs without a name of a device."""


@pytest.mark.parametrize("name", PAGING)
def test_commands_of_a_class_that_pages_are_valid_on_a_simulated_node(
    name: str, names: SimulatedNames
) -> None:
    for cause in names.causes[AREAS.get(name, "network")]:
        used: set[str] = set()
        for command in commands_of(name, "b1d0ed7ec447", cause):
            assert "{" not in command
            used |= checked_programs(command, names)
        assert used & {"scontrol", "kubectl pod", "ethtool"}


def test_commands_name_the_device_and_the_incident() -> None:
    found = list(commands_of("ecc_uncorrectable", "b1d0ed7ec447", GPU))
    assert found[0] == (
        "scontrol update nodename=gpu-node-1 state=drain reason='railscope ecc_uncorrectable b1d0ed7ec447'"
    )
    assert "ssh gpu-node-1 'sudo nvidia-smi --gpu-reset -i 0000:9d:00.0'" in found
    assert found[-1] == "kubectl uncordon gpu-node-1"
    assert "ssh gpu-node-1 'sudo ethtool -m ens4f0np0'" in list(commands_of("link_down", "a", NIC))


@pytest.mark.parametrize("cause", [NODE, LeafDocument("leaf-3", 0, 3), GpuDocument("", 4, "", "")])
def test_a_command_without_its_names_is_left_out(cause: EntityDocument) -> None:
    found = list(commands_of("ecc_uncorrectable", "a", cause))
    assert not any("gpu-reset" in command for command in found)
    assert bool(found) is isinstance(cause, NodeDocument)


@given(st.text(max_size=20))
def test_a_hostile_name_is_one_word_of_a_command_or_none(name: str) -> None:
    nic = NicDocument("n", name, "", "", None, "", "")
    for command in commands_of("link_down", "a", nic):
        *_, remote = shlex.split(command)
        assert shlex.split(remote)[-1] == name, "the shell of the node parses it again"
        assert not name.startswith("-")


def test_the_state_before_a_reset_is_recorded_anew_each_time() -> None:
    found = list(commands_of("ecc_uncorrectable", "b1d0ed7ec447", GPU))
    recorded = next(i for i, each in enumerate(found) if "agent record" in each)
    assert recorded < next(i for i, each in enumerate(found) if "--gpu-reset" in each)
    script = f'ssh() {{ shift; bash -c "sudo() {{ echo \\$*; }}; $*"; }}\n{found[recorded]}'
    shown = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert re.fullmatch(
        r"railscope agent record --redact railscope-gpu-node-1-[0-9-]{10}T[0-9]{4}\n", shown.stdout
    )


DRAINED = [name for name in CLASSES if "railscope nodes NODE" in general_commands(name)]
"""Classes whose node is drained and returned to service."""


@pytest.mark.parametrize("name", DRAINED)
def test_a_node_returns_only_after_a_remedy(name: str) -> None:
    commands = general_commands(name)
    idle = max(
        i
        for i, each in enumerate(commands)
        if each.startswith(("squeue ", "kubectl ")) and i < commands.index("railscope nodes NODE")
    )
    remedy = commands[idle + 1 : commands.index("railscope nodes NODE")]
    assert remedy, "it would return with its fault"


@pytest.mark.parametrize("name", DRAINED)
def test_slurm_ends_the_jobs_that_kubernetes_evicts(name: str) -> None:
    programs = [" ".join(command.split()[:2]) for command in general_commands(name)]
    cancel = "scancel --nodelist=NODE"
    assert (cancel in programs) is ("kubectl drain" in programs)
    if cancel in programs:
        assert programs.index("scontrol update") < programs.index(cancel)
        assert programs.index(cancel) < programs.index("squeue --nodelist=NODE")


@pytest.mark.parametrize("job", JOBS)
def test_a_hung_job_is_restarted_after_its_dumps_were_copied(job: JobDocument) -> None:
    commands = list(commands_of("nccl_hang", "a", job))
    (copied,) = (i for i, each in enumerate(commands) if "flight-recorder" in each)
    (restarted,) = (i for i, each in enumerate(commands) if {"requeue", "delete"} & {*each.split()})
    assert copied < restarted
    directory = PurePath(CollectiveSettings().flight_recorder_directory)
    assert str(directory) in commands[copied].replace(
        f"{directory.parent} ", f"{directory.parent}/"
    )


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
    (command,) = (each for each in commands_of("nccl_hang", "a", job) if each.startswith("for "))
    subprocess.run(["bash", "-c", SLURM + command], cwd=tmp_path, check=True, timeout=30)
    assert (tmp_path / "squeue.txt").read_text() == f"--jobs={number}\n"
    for node in ("gpu-node-1", "gpu-node-2"):
        copied = (tmp_path / f"flight-recorder-{number}-{node}.tar").read_text()
        assert copied == f"{node} sudo tar --create --directory=/run/railscope flight-recorder\n"
    assert len(list(tmp_path.iterdir())) == 3
