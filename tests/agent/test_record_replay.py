"""Recording a server and replaying it: the same frames, and no secrets."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from support.clock import ManualClock
from support.gpus import of_gpu
from support.machine import FakeHost
from support.metric_samples import samples
from support.pci_bus import add_nic
from support.rdma_nics import INFINIBAND
from support.reading import ORIGIN, read_once
from support.tree import HOSTNAME, TreeHost, make_tree

from railscope.capture import Capture, CaptureMetadata, read_capture
from railscope.frame import Frame, NodeTimestamp
from railscope_agent.commands import agent
from railscope_agent.config import AgentSettings
from railscope_agent.host import Host, NvmlError
from railscope_agent.host.recorded_host import RecordedHost
from railscope_agent.host.recording_host import RecordingHost
from railscope_agent.host.redactor import Redactor
from railscope_agent.machine_sources import machine_sources
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.sampling.source_reader import SourceReader
from railscope_agent.streams.kernel_log import KernelLogStream
from railscope_agent.topology.network import NetworkScanner

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
TICKS = 6
AROUND = {
    "protocols", "bonds", "gpudirect", "nfs", "lustre", "ceph", "nvme", "rapl", "hwmon", "edac",
}  # fmt: skip
Change = Callable[[TreeHost, Path], None]


def appended(root: Path, sequence: int, text: str) -> None:
    with (root / "dev/kmsg").open("a") as log:
        log.write(f"3,{sequence},{sequence * 1000},-;{text}\n")


def counter(root: Path, interface: str) -> Path:
    return root / INFINIBAND[1:] / interface / "ports/1/counters/port_xmit_packets"


def nothing(host: TreeHost, root: Path) -> None:
    del host, root


def traffic(host: TreeHost, root: Path) -> None:
    counter(root, "mlx5_0").write_text("12345678901234567890")
    host.set_counters(2)
    (root / "sys/class/powercap/intel-rapl:0/energy_uj").write_text("240822366267\n")
    (root / "proc/net/softnet_stat").write_text("00000001 00000012 00000003\n")


def loss(host: TreeHost, root: Path) -> None:
    appended(root, 2, XID)
    host.drivers.calls |= dict.fromkeys(of_gpu(host.drivers, 1), NvmlError(15))


def removal(host: TreeHost, root: Path) -> None:
    del host
    counter(root, "mlx5_1").write_text("")
    counter(root, "mlx5_1").unlink()


def refusal(host: TreeHost, root: Path) -> None:
    counter(root, "mlx5_1").write_text("garbage")
    host.drivers.calls["ethtool.statistics(eth0)"] = OSError(errno.EPERM, "not permitted")


STORY: list[Change] = [nothing, traffic, loss, removal, refusal, nothing]


def frames_of(host: Host, clock: ManualClock, change: Callable[[int], None]) -> list[Frame]:
    """Return the frames of all sources at each tick, with a change before each."""
    readers = [SourceReader(source, host, ORIGIN) for source in machine_sources(AgentSettings())]
    found = []
    for tick in range(TICKS):
        change(tick)
        found += [frame for reader in readers if (frame := reader.run().frame)]
        clock.advance(1)
    return found


def recorded(root: Path, redactor: Redactor | None = None) -> tuple[list[Frame], Capture]:
    """Return the live frames of a scenario and its capture."""
    clock = ManualClock()
    started = clock.now()
    host = TreeHost(make_tree(root), clock)
    recording = RecordingHost(host, redactor)
    live = frames_of(recording, clock, lambda tick: STORY[tick](host, root))
    about = CaptureMetadata(
        "node-1", "boot-1", started.wall_ns, started.boot_ns, TICKS * 10**9, "test"
    )
    return live, Capture(about, tuple(recording.moments))


def replayed(capture: Capture) -> list[Frame]:
    clock = ManualClock()
    started = clock.now().boot_ns
    host = RecordedHost(capture, clock, lambda: clock.now().boot_ns - started)
    return frames_of(host, clock, lambda _: None)


def test_a_replay_gives_the_recorded_readings(tmp_path: Path) -> None:
    live, capture = recorded(tmp_path / "root")
    capture.write(tmp_path / "capture")
    again = replayed(read_capture(tmp_path / "capture"))
    assert len(live) == len(again) > TICKS * 5
    for before, after in zip(live, again, strict=True):
        assert after == before
    assert sum(len(frame.events) for frame in again) == 1
    assert {frame.schema.stream for frame in again} >= AROUND
    (energy,) = {
        reading
        for frame in again[len(again) // 2 :]
        if frame.schema.stream == "rapl"
        for _, _, reading in frame.readings()
    }
    assert energy == 400_000_000, "comparisons of two reads work in a replay"
    assert any(frame.reasons for frame in again)


@pytest.mark.parametrize(
    ("error", "verdict"), [(errno.EPERM, ProbeVerdict.DENIED), (errno.ENOENT, ProbeVerdict.ABSENT)]
)
def test_a_log_that_could_not_be_read_cannot_be_replayed(error: int, verdict: ProbeVerdict) -> None:
    """Otherwise the replay would claim without evidence that there was no Xid."""
    live = FakeHost()
    live.log.closed = OSError(error, "cannot be opened")
    recording = RecordingHost(live)
    outcome = read_once(KernelLogStream(), recording)
    capture = Capture(CaptureMetadata("n", "b", 0, 0, 1, "test"), tuple(recording.moments))
    again = read_once(KernelLogStream(), RecordedHost(capture, ManualClock(), lambda: 0))
    assert [f.verdict for f in outcome.findings] == [f.verdict for f in again.findings] == [verdict]
    assert outcome.frame is again.frame is None


SERIAL = "1650123456789"


class AdvancingClock(ManualClock):
    """A clock that advances by more than one capture moment at each read."""

    def now(self) -> NodeTimestamp:
        self.advance(0.05)
        return super().now()


def test_a_name_learned_late_is_redacted_in_earlier_texts(tmp_path: Path) -> None:
    host = FakeHost(AdvancingClock())
    host.calls["nvml.nvmlDeviceGetSerial(0)"] = SERIAL
    host.log.waiting = [f"6,1,1,-;NVRM: board {SERIAL} is up"]
    recording = RecordingHost(host, Redactor())
    recording.kernel_log().poll()
    recording.call("nvml", "nvmlDeviceGetSerial", 0)
    Capture(CaptureMetadata("n", "b", 0, 0, 1, "t"), tuple(recording.moments)).write(tmp_path)
    assert len(recording.moments) > 1
    assert SERIAL not in (tmp_path / "timeline.jsonl").read_text()


def run(*arguments: str | Path) -> tuple[int, str]:
    outcome = CliRunner().invoke(agent, [str(argument) for argument in arguments])
    return outcome.exit_code, outcome.output


def test_record_and_replay_by_command(tmp_path: Path) -> None:
    root, directory = make_tree(tmp_path / "root"), tmp_path / "capture"
    code, output = run("record", "--root", root, "--seconds", "0.1", directory)
    assert (code, output.count(HOSTNAME)) == (0, 1), output
    code, live = run("once", "--root", root)
    code_of_replay, again = run("once", "--replay", directory)
    assert code == code_of_replay == 0

    def machine(page: str) -> dict[object, float]:
        own = ("railscope_agent_", "railscope_source_", "railscope_governor_")
        return {label: v for label, v in samples(page).items() if not label[0].startswith(own)}

    assert machine(again) == machine(live)
    assert len(machine(live)) > 30


def test_a_capture_is_not_written_over_another(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("")
    code, output = run("record", "--seconds", "0", "--root", tmp_path, tmp_path)
    assert code == 1
    assert (
        f"cannot record into {tmp_path}: the directory is not empty; fix: specify a new directory"
        in output
    )


@pytest.mark.parametrize(
    ("timeline", "problem"), [('{"t":0}\n{"t":', "incomplete last line 2"), ("", "empty file")]
)
@pytest.mark.parametrize("command", ["once", "check", "run"])
def test_a_damaged_capture_is_one_clear_line(
    tmp_path: Path, command: str, timeline: str, problem: str
) -> None:
    Capture(CaptureMetadata("n", "b", 0, 0, 1, "t"), ()).write(tmp_path)
    (tmp_path / "timeline.jsonl").write_text(timeline)
    code, output = run(command, "--replay", tmp_path)
    assert code == 1
    assert output.startswith(
        f"Error: reading the capture failed: {tmp_path}/timeline.jsonl: {problem}: "
    )
    assert output.count("\n") == 1


VITAL = b"\x82\x0a\x00ConnectX-7\x90\x20\x00SN\x0dMT2342T00123\x80V2SMDL=SW_MNG\x78"


@pytest.mark.parametrize("redact", [True, False])
def test_product_data_keeps_the_required_fields_and_no_serial_number(
    tmp_path: Path, *, redact: bool
) -> None:
    """A recorded bridge to an NVSwitch is one when it is replayed."""
    host = FakeHost()
    address = add_nic(host, "pci0000:70/0000:70:01.0/0000:71:00.0", "mlx5_0")
    host.files[f"{host.links[f'/sys/bus/pci/devices/{address}']}/vpd"] = VITAL
    recording = RecordingHost(host, Redactor() if redact else None)
    NetworkScanner().scan(recording)
    Capture(CaptureMetadata("n", "b", 0, 0, 1, "t"), tuple(recording.moments)).write(tmp_path)
    assert ("MT2342T00123" in (tmp_path / "timeline.jsonl").read_text()) is not redact
    replayed = RecordedHost(read_capture(tmp_path), ManualClock(), lambda: 0)
    (device,) = NetworkScanner().scan(replayed).devices
    assert device.role == "bridge"
