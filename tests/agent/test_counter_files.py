"""Counter files that change, vanish, reappear or contain garbage."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from support.clock import ManualClock
from support.machine import DENIED, NO_DEVICE, FakeHost
from support.rdma_nics import add_nic
from support.reading import ORIGIN, read_once, readings
from support.sampling import PATIENCE_SECONDS, run_sampler
from support.tree import TreeHost, make_tree

from railscope.reading import REASONS, Absent, Reading
from railscope_agent.config import AgentSettings
from railscope_agent.host import FileGroup
from railscope_agent.host.file_groups import OpenFiles, PlainFiles, PortCounterFiles
from railscope_agent.host.files import RootedFiles
from railscope_agent.host.live_host import LiveHost
from railscope_agent.machine_sources import machine_sources
from railscope_agent.sampling.sampler import Sampler
from railscope_agent.sources.rdma import RdmaSource

PORT = "/sys/class/infiniband/mlx5_0/ports/1"
SENT = "railscope_rdma_transmit_packets_total", ("mlx5_0", "1")


def contents(files: FileGroup, count: int) -> list[Reading]:
    """Read a group into the middle of a row, as a source does."""
    values, reasons = [7] * (count + 2), bytearray(count + 2)
    files.read_into(values, reasons, 1)
    assert values[0] == values[-1] == 7, "a neighbour was touched"
    pairs = zip(values[1:-1], reasons[1:-1], strict=True)
    return [REASONS[code] if code else value for value, code in pairs]


def read_bytes(path: str) -> bytes:
    return Path(path).read_bytes()


def test_files_kept_open_read_as_files_opened_each_time(tmp_path: Path) -> None:
    """Files with numbers are parsed together, and one by one after any of them had none."""
    paths = [tmp_path / str(number) for number in range(4)]
    kept = OpenFiles([str(path) for path in paths])
    plain = PlainFiles(read_bytes, [str(path) for path in paths])
    for turn, rest in enumerate(
        (["1"] * 4, ["2"] * 4, ["3"] * 4, ["bad"], ["4"] * 4, ["", "5"], ["6"] * 4)
    ):
        for path, text in zip(paths, rest, strict=False):
            path.write_text(f"{text}\n")
        if turn == 1:
            assert contents(kept, 4) == [2] * 4
        assert contents(kept, 4) == contents(plain, 4)
    kept.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_negative_counter_among_selected_metrics_is_an_error_of_its_own_column() -> None:
    """Without absent readings, the reasons have one code for each selected column, not for each of the row."""
    host, source = FakeHost(), RdmaSource()
    add_nic(host, packets="-5")
    host.files[f"{PORT}/counters/port_rcv_packets"] = "9"
    received = "railscope_rdma_receive_packets_total"
    source.selection = frozenset({received, SENT[0]})
    frame = read_once(source, host).frame
    assert frame is not None
    assert len(frame.reasons) == len(frame.schema.columns) == 2
    assert readings(frame) == {(received, SENT[1]): 9, SENT: Absent.ERROR}


# Paths under a root ------------------------------------------------------------------------------


def test_a_link_out_of_the_root_leads_nowhere(tmp_path: Path) -> None:
    """A sibling directory with the same prefix as the root is outside as well."""
    root, neighbour = tmp_path / "tree", tmp_path / "tree-2"
    for directory in (root, neighbour):
        (directory / "sys").mkdir(parents=True)
    (root / "sys/inside").symlink_to("../sys")
    (root / "sys/outside").symlink_to("../../tree-2/sys")
    files = RootedFiles(root)
    assert files.resolve("/sys/inside") == "/sys"
    with pytest.raises(FileNotFoundError, match="leads outside the root"):
        files.resolve("/sys/outside")


async def test_a_sampler_that_ends_leaves_no_file_open(tmp_path: Path) -> None:
    """A reload ends one sampler and starts another, in the same process, any number of times."""
    host = TreeHost(make_tree(tmp_path), ManualClock())
    before, others = open_files(), set(threading.enumerate())
    for _ in range(3):
        async with run_sampler(host, machine_sources(AgentSettings())) as run:
            await run.step()
            assert open_files() > before
    await Sampler(host, ORIGIN, machine_sources(AgentSettings()), lambda _: None).once()
    for thread in set(threading.enumerate()) - others:  # each closes its family's files
        thread.join(PATIENCE_SECONDS)
    assert open_files() <= before


class PortOfAKernel:
    """Counters of an RDMA port as the kernel returns them: all with one request."""

    def __init__(self, **counters: int) -> None:
        self.requests = 0
        self.answer: tuple[tuple[str, ...], tuple[int, ...]] | OSError = (), ()
        self.count(**counters)

    def count(self, **counters: int) -> None:
        self.answer = tuple(counters), tuple(counters.values())

    def counters(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        self.requests += 1
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer


def port_files(directory: Path, kernel: PortOfAKernel, **texts: int) -> PortCounterFiles:
    paths = [str(directory / name) for name in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        Path(path).write_text(f"{text}\n")
    return PortCounterFiles(paths, OpenFiles(paths), kernel.counters)


def test_one_request_reads_the_counters_of_a_port(tmp_path: Path) -> None:
    kernel = PortOfAKernel(sent=1, optional=2, received=2**64 - 1)
    files = port_files(tmp_path, kernel, received=7, sent=7)
    assert contents(files, 2) == [2**64 - 1, 1]
    kernel.count(received=5, sent=6)
    assert contents(files, 2) == [5, 6], "the order changed"
    assert kernel.requests == 2
    assert files.texts() == [b"7\n", b"7\n"]
    files.close()


@pytest.mark.parametrize(
    "answer", [NO_DEVICE, DENIED, OSError(errno.EMSGSIZE, "too many"), (("received",), (5,))]
)
def test_files_are_read_without_an_answer_or_without_one_of_the_counters(
    tmp_path: Path, answer: OSError | tuple[tuple[str, ...], tuple[int, ...]]
) -> None:
    kernel = PortOfAKernel(sent=1, received=2)
    files = port_files(tmp_path, kernel, received=7, sent=8)
    assert contents(files, 2) == [2, 1]
    kernel.answer = answer
    assert contents(files, 2) == [7, 8]
    kernel.count(sent=3, received=4)
    assert contents(files, 2) == [7, 8], "until the group is opened again"
    (tmp_path / "sent").write_text("")
    (tmp_path / "sent").unlink()
    assert contents(files, 2) == [7, Absent.GONE]
    files.close()


def test_counters_of_a_missing_port_are_gone_on_a_live_node() -> None:
    paths = [f"/sys/class/infiniband/none_0/ports/1/hw_counters/{n}" for n in range(20)]
    files = LiveHost().open_file_group(["/proc/sys/kernel/pid_max", *paths])
    pid_max, *counters = contents(files, 21)
    assert not isinstance(pid_max, Absent)
    assert counters == [Absent.GONE] * 20
    files.close()
