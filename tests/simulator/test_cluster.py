"""Clusters with faults: captures, counters that follow from the model, and the ground truth."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cases import third_of

from railscope.capture import CaptureTimeline, read_capture
from railscope.timestamps import SECOND_NS
from railscope_simulator.cluster.captures import write_cluster
from railscope_simulator.cluster.cluster_model import ClusterModel
from railscope_simulator.cluster.cluster_parts import ClusterPart, run_parts
from railscope_simulator.cluster.scenario import FAULT_KINDS, ScenarioError, read_scenario
from railscope_simulator.cluster.topology import ClusterTopology
from railscope_simulator.owners import slurm_job_number

CLUSTER = """
seconds = 60
step_seconds = 5
seed = 4

[cluster]
pods = 2
nodes_per_pod = 2

[[jobs]]
name = "llama"
nodes = [0, 1, 2]
checkpoint_period_seconds = 0

"""


def fault(name: str, **keys: Any) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(["[[faults]]", f'fault = "{name}"', *lines, ""])


def model_of(directory: Path, text: str) -> ClusterModel:
    """A cluster after its scenario."""
    path = directory / "scenario.toml"
    path.write_text(CLUSTER + text)
    model = ClusterModel(read_scenario(path))
    for second in range(5, 61, 5):
        model.advance(second * SECOND_NS)
    return model


def target(name: str) -> dict[str, Any]:
    """Devices for a fault of a kind."""
    entity = FAULT_KINDS[name].entity
    devices = {
        "leaf": {"pods": [0], "indices": [3]},
        "job": {"job": "llama"},
        "node": {"nodes": [1]},
        "storage": {"filers": [0]},
    }
    keys = devices.get(entity, {"nodes": [1], "indices": [3]})
    return {**keys, "senders": [0, 2]} if "incast" in FAULT_KINDS[name].effects else keys


@pytest.mark.parametrize("name", third_of(FAULT_KINDS))
def test_every_fault_can_be_simulated_and_has_a_ground_truth(tmp_path: Path, name: str) -> None:
    path = tmp_path / "scenario.toml"
    text = CLUSTER.replace("seconds = 60\nstep_seconds = 5", "seconds = 20\nstep_seconds = 10", 1)
    path.write_text(
        text + fault(name, begin_seconds=5, length_seconds=10, strength=1.0, **target(name))
    )
    write_cluster(read_scenario(path), tmp_path / "out")
    lines = (tmp_path / "out" / "truth.jsonl").read_text().splitlines()
    for truth in map(json.loads, lines):
        assert truth["class"] == FAULT_KINDS[name].incident_class
        assert truth["cause"]
        assert truth["onset"] < truth["ended"]
    assert len(lines) == bool(FAULT_KINDS[name].incident_class), "none for a harmless event"
    nodes = ["gpu-node-1", "gpu-node-2", "gpu-node-33", "gpu-node-34"]
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["arrivals.csv", *nodes, "truth.jsonl"]
    for node in nodes:
        assert read_capture(tmp_path / "out" / node).moments


def fail_in_second_part(directory: Path, part: ClusterPart) -> None:
    (directory / f"{part.number}").write_bytes(b"")
    if part.number == 1:
        raise OSError(errno.ENOSPC, "no space", str(directory))
    part.exchange(np.zeros((4, 8)), part.numbers(4))


def test_an_error_of_one_process_ends_the_simulation(tmp_path: Path):
    topology = ClusterTopology(pods=2, nodes_per_pod=2)
    with pytest.raises(OSError, match="no space"):
        run_parts(fail_in_second_part, tmp_path, topology, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def wait_for_signal(fifo: Path, _: ClusterPart) -> None:
    with fifo.open("w") as file:
        file.write(f"{os.getpid()}\n")
    while True:
        signal.pause()


def test_all_processes_of_a_simulation_end_with_it(tmp_path: Path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    code = (
        "from pathlib import Path; from tests.simulator import test_cluster as t; "
        f"t.run_parts(t.wait_for_signal, Path({str(fifo)!r}), t.ClusterTopology(2, 2), 2)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (
        subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stderr=subprocess.DEVNULL
        ) as parent,
        os.fdopen(
            os.open(fifo, os.O_RDWR)
        ) as file,  # open for writing too: without an end between the writers
    ):
        parts = [os.pidfd_open(int(file.readline())) for _ in range(2)]
        parent.terminate()
    ended = [bool(select.select([part], [], [], 60)[0]) for part in parts]
    for part, is_ended in zip(parts, ended, strict=True):
        if not is_ended:
            signal.pidfd_send_signal(part, signal.SIGKILL)
        os.close(part)
    assert ended == [True, True]


def test_equal_scenarios_produce_equal_captures(tmp_path: Path):
    path = tmp_path / "scenario.toml"
    noisy = CLUSTER.replace("seed = 4", "seed = 4\njitter = 0.4\nlost = 0.2")
    path.write_text(noisy + fault("slow_receiver", begin_seconds=20, nodes=[1], indices=[3]))
    for name, processes in (("first", 1), ("second", 2)):
        write_cluster(read_scenario(path), tmp_path / name, processes)
    written = sorted(
        file.relative_to(tmp_path / "first") for file in (tmp_path / "first").rglob("*.*")
    )
    for file in written:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
    moments = read_capture(tmp_path / "first" / "gpu-node-1").moments
    gaps = {after.offset_ns - before.offset_ns for before, after in pairwise(moments)}
    assert len(gaps) > 3, "samples have their own times"
    assert len(moments) < 13, "some are lost"


def test_a_slow_receiver_shows_at_its_port_and_at_its_job_only(tmp_path: Path):
    model = model_of(
        tmp_path,
        fault("pcie_bound_receiver", begin_seconds=0, strength=1.0, nodes=[1], indices=[3]),
    )
    ports = [[cable.counters for cable in node.cables[:8]] for node in model.nodes]
    pausing = [[port.pausing_ns for port in row] for row in ports]
    assert max((ns, at, rail) for at, row in enumerate(pausing) for rail, ns in enumerate(row))[
        1:
    ] == (1, 3)
    assert ports[1][3].write_stalled_ns > 30 * SECOND_NS
    healthy = model_of(tmp_path, "")
    handled = [
        ports[0][rail].notifications_handled
        - healthy.nodes[0].cables[rail].counters.notifications_handled
        for rail in (2, 3)
    ]
    assert handled[1] > 10 * abs(handled[0]), "its sender is notified"
    (step,) = model.steps
    assert step.progress.iterations < 5 / 4 * 0.8
    idle = model.nodes[3]
    assert not any(gpu.demand.resident for gpu in idle.gpus)


def test_faults_of_congestion_control_show_in_the_counters_of_their_port(tmp_path: Path):
    model = model_of(
        tmp_path,
        fault("rate_control_off", begin_seconds=0, nodes=[0], indices=[1])
        + fault("unprotected", begin_seconds=0, strength=0.5, nodes=[0], indices=[2])
        + fault("host_bound_receiver", begin_seconds=0, strength=1.0, nodes=[1], indices=[3]),
    )
    sender, receiver = ([cable.counters for cable in node.cables[:4]] for node in model.nodes[:2])
    assert [port.notifications_ignored > 0 for port in sender] == [False, True, False, False]
    arrived = receiver[2].misprioritized_received.packets
    assert arrived == pytest.approx(sender[2].misprioritized_sent.packets, rel=0.05)
    assert sender[2].sequence_errors > 50, "its receiver reports losses"
    assert receiver[2].out_of_sequence > 50
    assert [port.dropped.packets > 0 for port in receiver] == [False, False, False, True]


def test_a_sender_waits_for_a_receiver_without_a_link(tmp_path: Path):
    model = model_of(tmp_path, fault("link_down", begin_seconds=10, nodes=[1], indices=[3]))
    timeouts = [[port.counters.ack_timeouts for port in node.cables[:8]] for node in model.nodes]
    assert [row[3] > 50 for row in timeouts] == [True, True, False, False]
    assert not any(timeouts[0][:3])


def test_the_power_brake_lowers_clocks_and_is_their_reason(tmp_path: Path):
    model = model_of(tmp_path, fault("power_brake", begin_seconds=20, nodes=[1]))
    braked, other = model.nodes[1].gpus[0].silicon, model.nodes[0].gpus[0].silicon
    assert braked.clock_megahertz < 0.7 * other.clock_megahertz
    assert braked.throttled.power_brake_ns > 10 * SECOND_NS
    assert not other.throttled.power_brake_ns


def test_a_slow_file_server_limits_the_jobs_that_read_from_it(tmp_path: Path):
    model = model_of(tmp_path, fault("storage_slow", begin_seconds=0, filers=[0]))
    assert all("filer-1:/export" in str(node.mounts[0].lines()) for node in model.nodes)
    reads = model.nodes[0].mounts[0].operations["READ"]
    healthy = model_of(tmp_path, "").nodes[0].mounts[0].operations["READ"]
    assert reads.requests < healthy.requests
    assert reads.response_ms > healthy.response_ms
    assert model.steps[0].progress.starving > 0.1
    assert model.nodes[0].server.pressure["io"].some_percent[1] > 20


def test_a_slow_mount_of_one_node_makes_it_late(tmp_path: Path):
    model = model_of(tmp_path, fault("mount_slow", begin_seconds=0, strength=1.0, nodes=[1]))
    occupied = [node.gpus[0].silicon.occupied_percent for node in model.nodes[:3]]
    assert occupied[1] < 80 < min(occupied[0], occupied[2])


def test_ranks_of_a_hung_collective_spin_and_send_nothing(tmp_path: Path):
    model = model_of(tmp_path, fault("hung_collective", begin_seconds=20, job="llama"))
    gpu = model.nodes[0].gpus[0]
    assert gpu.silicon.occupied_percent > 95
    assert 0.05 < gpu.activity.sm < 0.3
    assert gpu.activity.tensor < 0.01
    assert not gpu.demand.exchanged


def test_the_other_nodes_of_a_job_wait_for_a_late_host(tmp_path: Path):
    model = model_of(tmp_path, fault("late_host", begin_seconds=0, strength=0.6, nodes=[1]))
    late, other = model.nodes[1], model.nodes[0]
    assert late.gpus[0].silicon.occupied_percent < 90 < other.gpus[0].silicon.occupied_percent
    assert late.server.pressure["cpu"].some_percent[0] > 20
    healthy = model_of(tmp_path, "").nodes[0]
    active = [node.gpus[0].cycles.sm for node in (other, healthy)]
    assert active[0] < active[1], "they spin on few multiprocessors"


def test_senders_to_a_dead_node_time_out_on_all_rails(tmp_path: Path):
    model = model_of(tmp_path, fault("node_down", begin_seconds=10, nodes=[1]))
    assert all(port.counters.ack_timeouts > 50 for port in model.nodes[0].cables[:8])
    assert not model.nodes[2].cables[0].counters.ack_timeouts


def test_arrivals_end_with_a_node_or_its_network(tmp_path: Path):
    path = tmp_path / "scenario.toml"
    faults = fault("node_down", begin_seconds=30, nodes=[1])
    faults += fault("node_partition", begin_seconds=30, nodes=[3])
    faults += fault("clock_skew", begin_seconds=10, nodes=[0], strength=1.0)
    path.write_text(CLUSTER + faults)
    write_cluster(read_scenario(path), tmp_path / "out")
    lines = (tmp_path / "out" / "arrivals.csv").read_text().splitlines()
    assert lines[0] == "node,sent,received"
    rows = [(node, int(sent), int(received)) for node, sent, received in map(_cells, lines[1:])]
    start_ns = min(received for _, _, received in rows)
    last = {node: (received - start_ns) / SECOND_NS for node, _, received in rows}
    assert [last[f"gpu-node-{number}"] > 40 for number in (1, 2, 33, 34)] == [1, 0, 1, 0]
    deviation = {node: (sent - received) / SECOND_NS for node, sent, received in rows}
    assert abs(deviation["gpu-node-1"]) > 4
    ends = {
        number: read_capture(tmp_path / "out" / f"gpu-node-{number}").moments[-1].offset_ns
        for number in (2, 34)
    }
    assert ends == {2: 30 * SECOND_NS, 34: 60 * SECOND_NS}, "the capture of a node ends with it"


def _cells(line: str) -> list[str]:
    return line.split(",")


def test_evaluations_and_services_use_less_of_the_gpus(tmp_path: Path):
    text = CLUSTER.replace("pods = 2", "pods = 3", 1).replace("nodes = [0, 1, 2]", "nodes = [0, 1]")
    job = '[[jobs]]\nname = "{}"\nnodes = {}\ncheckpoint_period_seconds = 0\n{}\n'
    path = tmp_path / "scenario.toml"
    evaluating = "evaluation_period_seconds = 60\nevaluation_seconds = 60"
    path.write_text(
        text + job.format("eval", [2, 3], evaluating) + job.format("chat", [4, 5], "load = 0.4")
    )
    model = ClusterModel(read_scenario(path))
    for second in range(5, 61, 5):
        model.advance(second * SECOND_NS)
    training, evaluation, service = (model.nodes[node] for node in (0, 2, 4))
    tensor = [node.gpus[0].activity.tensor for node in (training, evaluation)]
    assert tensor[1] < 0.8 * tensor[0]
    assert 10 < service.gpus[0].silicon.occupied_percent < 90
    numbers = {node.spec.job: slurm_job_number(node.spec) for node in model.nodes}
    assert len(set(numbers.values())) == 3, "each job has its own number"


def test_stages_of_a_pipeline_compute_unevenly_by_design(tmp_path: Path):
    path = tmp_path / "scenario.toml"
    path.write_text(CLUSTER + "uneven = 0.4\n")
    model = ClusterModel(read_scenario(path))
    iterations = 0.0
    for second in range(5, 61, 5):
        model.advance(second * SECOND_NS)
        iterations += model.steps[0].progress.iterations
    active = [node.gpus[0].cycles.sm for node in model.nodes[:3]]
    assert active == sorted(active, reverse=True)
    assert iterations > 60 / 4 * 0.9


def test_a_rank_that_starts_no_collective_is_idle_while_others_spin(tmp_path: Path):
    model = model_of(tmp_path, fault("missing_rank", begin_seconds=20, nodes=[1], indices=[2]))
    missing, waiting = model.nodes[1].gpus[2], model.nodes[0].gpus[2]
    assert missing.silicon.occupied_percent == 0
    assert missing.sharing.present, "its process is there"
    assert waiting.silicon.occupied_percent > 95
    assert waiting.activity.sm < 0.3


@pytest.mark.parametrize("name", ["hung_collective", "missing_rank"])
def test_a_job_that_hangs_writes_no_checkpoint(tmp_path: Path, name: str) -> None:
    path = tmp_path / "scenario.toml"
    hang = fault(name, begin_seconds=20, **target(name))
    for text, has_checkpoint in (("", True), (hang, False)):
        period = "checkpoint_period_seconds = 45"
        path.write_text(CLUSTER.replace("checkpoint_period_seconds = 0", period) + text)
        model = ClusterModel(read_scenario(path))
        shares = []
        for second in range(5, 61, 5):
            model.advance(second * SECOND_NS)
            shares.append(model.steps[0].progress.checkpoint)
        assert (max(shares[6:]) > 0) == has_checkpoint


def test_an_error_of_an_application_is_in_the_kernel_log_and_not_in_the_truth(tmp_path: Path):
    path = tmp_path / "scenario.toml"
    path.write_text(CLUSTER + fault("application_error", begin_seconds=20, nodes=[1], indices=[5]))
    write_cluster(read_scenario(path), tmp_path / "out")
    moments = read_capture(tmp_path / "out" / "gpu-node-2").moments
    assert any(": 31, pid=4711" in line for moment in moments for line in moment.log)
    assert not (tmp_path / "out" / "truth.jsonl").read_text()


def test_the_slow_gpu_is_the_busier_one(tmp_path: Path):
    model = model_of(
        tmp_path, fault("slow_gpu", begin_seconds=0, strength=1.0, nodes=[1], indices=[2])
    )
    active = [[gpu.cycles.sm / gpu.cycles.elapsed for gpu in node.gpus] for node in model.nodes[:3]]
    assert max((share, at, gpu) for at, row in enumerate(active) for gpu, share in enumerate(row))[
        1:
    ] == (1, 2)
    occupied = {gpu.silicon.occupied_percent > 90 for node in model.nodes[:3] for gpu in node.gpus}
    assert occupied == {True}, "waiting GPUs are fully utilized, too"


def test_a_lost_gpu_stops_the_job_and_the_others_spin(tmp_path: Path):
    model = model_of(tmp_path, fault("gpu_lost", begin_seconds=10, nodes=[1], indices=[2]))
    assert model.steps[0].progress.iterations == 0
    assert model.nodes[1].gpus[2].lost
    spinning = model.nodes[0].gpus[0]
    assert spinning.silicon.occupied_percent > 90
    assert spinning.activity.sm < 0.25


def test_the_kernel_log_reports_the_fault_of_a_node(tmp_path: Path):
    path = tmp_path / "scenario.toml"
    path.write_text(CLUSTER + fault("gpu_lost", begin_seconds=20, nodes=[2], indices=[5]))
    write_cluster(read_scenario(path), tmp_path / "out")
    logs = {
        node: CaptureTimeline(read_capture(tmp_path / "out" / node).moments).log_between(
            0, 60 * SECOND_NS
        )
        for node in ("gpu-node-1", "gpu-node-33")
    }
    assert any("79, " in line and "Xid" in line for line in logs["gpu-node-33"])
    assert not any("Xid" in line for line in logs["gpu-node-1"])


def test_a_directory_with_content_is_left_as_it_is(tmp_path: Path):
    path, directory = tmp_path / "scenario.toml", tmp_path / "out"
    path.write_text(CLUSTER)
    (directory / "earlier").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="expected a new or empty directory"):
        write_cluster(read_scenario(path), directory)
    assert [entry.name for entry in directory.iterdir()] == ["earlier"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "[[faults]]\nfault = 'gremlin'\nbegin_seconds = 1",
            "fault 'gremlin': unknown fault: expected one of ",
        ),
        (fault("slow_receiver", begin_seconds=1), "no nodes: expected at least one"),
        (fault("slow_receiver", begin_seconds=1, nodes=[9]), "nodes: 9: expected at most 3"),
        (
            fault("ecn_off", begin_seconds=1, pods=[0], indices=[8]),
            "indices: 8: expected at most 7",
        ),
        (fault("slow_input", begin_seconds=1, job="gpt"), "unknown job 'gpt'"),
        (
            fault("gpu_lost", begin_seconds=1, nodes=[1, 2], indices=[1]),
            "nodes and indices: expected one node, and at least one index",
        ),
        (fault("incast", begin_seconds=1, nodes=[1], senders=[1]), "expected one receiver"),
        (fault("incast", begin_seconds=1, nodes=[1, 2], senders=[0]), "expected one receiver"),
        (fault("ecn_off", begin_seconds=1, pods=[0], senders=[1]), "senders: expected none"),
        (fault("ecn_off", begin_seconds=60, pods=[0]), "begin_seconds: 60: expected less than"),
        ("[[jobs]]\nname = 'llama'\nnodes = [3]", "job 'llama': duplicate name"),
        ("[[jobs]]\nname = 'b'\nnode = [3]", "unknown key `node`"),
        ("[[jobs]]\nname = 'b'\nnodes = [2]", "node 2: expected a node without a job, has 'llama'"),
        ("[[jobs]]\nname = 'b'\nnodes = []", "job 'b': no nodes"),
        ("[[jobs]]\nname = 'b'\nnodes = [4]", "node 4: expected at most 3"),
        (fault("ecn_off", begin_seconds=1, pods=[0], strength=2), "$.faults[0].strength"),
        *(
            (f"[[jobs]]\nname = 'b'\nnodes = [3]\n{key} = {value}", f"$.jobs[1].{key}")
            for key in (
                "iteration_seconds",
                "exchange",
                "rate",
                "activity",
                "checkpoint_period_seconds",
                "checkpoint_seconds",
                "evaluation_period_seconds",
                "evaluation_seconds",
                "uneven",
                "load",
                "watchdog_seconds",
            )
            for value in ("nan", "inf", "-1.0")
        ),
        ("[[jobs]]\nname = 'b'\nnodes = [3]\niteration_seconds = 1e-12", "`float` >= 0.01"),
        *(
            (f"[[jobs]]\nname = 'b'\nnodes = [3]\nbreaks = [[{times}]]", "$.jobs[1].breaks[0]")
            for times in ("-5.0, 1.0", "5.0, nan", "inf, 1.0", "5.0, -1.0")
        ),
        *(
            (
                f"[[faults]]\nfault = 'ecn_off'\npods = [0]\nbegin_seconds = {begin}\n{rest}",
                "$.faults[0].",
            )
            for begin, rest in (
                ("nan", ""),
                ("inf", ""),
                ("1", "length_seconds = nan"),
                ("1", "length_seconds = inf"),
            )
        ),
        ("[[jobs]", "scenario.toml"),
    ],
)
def test_an_invalid_scenario_is_rejected_with_its_key(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "scenario.toml"
    path.write_text(CLUSTER + text)
    with pytest.raises(ScenarioError, match=r"^invalid scenario: .*scenario\.toml: ") as error:
        read_scenario(path)
    assert problem in str(error.value)
