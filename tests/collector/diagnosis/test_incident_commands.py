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
    if command.startswith(("# ", "for ")):
        return set()
    words = shlex.split(command.replace("-$(date +%FT%H%M)", ""), comments=True)
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
        if plain[-2:] == ["get", "pods"]:
            assert plain[:1] == ["research"]
            return {program}
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
@pytest.mark.parametrize("name", sorted(CLASSES))
def test_without_the_names_of_its_remedy_no_node_returns_and_no_service_stays_stopped(
    name: str, cause: EntityDocument
) -> None:
    found = " ".join(commands_of(name, "a", cause))
    complete = " ".join(general_commands(name))
    remedies = ("gpu-reset", "devlink dev reload", "lspci -s")
    if any(remedy in complete for remedy in remedies):
        assert not any(text in found for text in (*remedies, "uncordon", "state=resume"))
        assert "systemctl stop" not in found
        assert found.endswith("find it before you go on") is isinstance(cause, NodeDocument)
    assert bool(found) is (isinstance(cause, NodeDocument) and "NODE" in complete)


def test_an_incident_that_has_ended_has_commands_of_return_only() -> None:
    found = list(commands_of("ecc_uncorrectable", "a", GPU, has_ended=True))
    assert found == [
        "# the fault has ended; if gpu-node-1 is still drained:",
        *list(commands_of("ecc_uncorrectable", "a", GPU))[-3:],
    ]
    assert not list(commands_of("nccl_hang", "a", JOBS[0], has_ended=True))
    assert not list(commands_of("gpu_lost", "a", GpuDocument("", 4, "", ""), has_ended=True))


def test_a_hung_job_of_another_source_has_advice() -> None:
    (found,) = commands_of("nccl_hang", "a", JobDocument("language", "file", "train"))
    assert found.startswith("# copy /run/railscope/flight-recorder from the nodes of train,")


@given(st.text(max_size=20))
def test_a_hostile_name_is_one_word_of_a_command_or_none(name: str) -> None:
    nic = NicDocument("n", name, "", "", None, "", "")
    for command in commands_of("link_down", "a", nic):
        *_, remote = shlex.split(command, comments=True) or [""]
        if "ethtool" not in command:
            continue
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


VERIFY = "railscope nodes NODE  # continue when it reports and is healthy"
DRAINED = [name for name in CLASSES if VERIFY in general_commands(name)]
"""Classes whose node is drained and returned to service."""


@pytest.mark.parametrize("name", DRAINED)
def test_a_node_returns_only_after_a_remedy(name: str) -> None:
    commands = general_commands(name)
    verified = commands.index(VERIFY)
    idle = max(
        i for i, each in enumerate(commands[:verified]) if each.startswith(("squeue ", "kubectl "))
    )
    assert commands[idle + 1 : verified], "it would return with its fault"


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_no_command_ends_jobs_of_a_node_that_still_compute(name: str) -> None:
    commands = general_commands(name)
    assert not any(re.match(r"scancel|kubectl delete pod", command) for command in commands)
    if evicts := [i for i, command in enumerate(commands) if command.startswith("kubectl drain")]:
        waits = commands[evicts[0] - 1].endswith("# continue when no job is left")
        assert waits is (name not in SPREADING)


SPREADING = {"pfc_storm"}
"""Classes whose fault costs other jobs more than those of its node."""


@pytest.mark.parametrize("name", sorted(SPREADING))
def test_a_fault_that_spreads_waits_for_no_job(name: str) -> None:
    commands = general_commands(name)
    before_remedy = commands[: commands.index(VERIFY)]
    assert not any("continue when" in command for command in before_remedy)
    ends = [command for command in before_remedy if re.match(r"squeue |kubectl ", command)]
    assert [command.split()[:2] for command in ends] == [
        ["squeue", "--nodelist=NODE"],
        ["kubectl", "drain"],
    ]
    assert ends[0].endswith("do not wait: scancel JOBID")


def test_a_pod_is_deleted_only_if_a_controller_starts_it_again() -> None:
    commands = general_commands("nccl_hang")
    (deleted,) = (i for i, command in enumerate(commands) if " delete pod " in command)
    assert 'only if its description has "Controlled By"' in commands[deleted]
    assert any(" describe pod " in command for command in commands[:deleted])


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
