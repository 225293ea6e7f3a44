"""Owners of processes and devices, as files of the node name them.

owner PATH...        owners of processes in these control groups, each once; in version 1 they are the same
list LINES           owner by a whole /proc/PID/cgroup; \\n begins a line
qemu ARGUMENT...     virtual machine by the command line of its process; _ is an empty argument
domain XML           virtual machine by the definition of libvirt
environ TEXT         variables of Slurm in an environment; | ends each
container JSON       container by Docker's file about it, with the label `team`
title TEXT           number of the job of a step daemon
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

from hypothesis import given, strategies as st
from support.stories import Story

from railscope.slurm import SlurmFormatError
from railscope_agent.owners import OwnerFormatError, runtimes, slurm
from railscope_agent.owners.cgroup import parse_owner, unescape_unit_name

UID = "2fc932ce-fdcc-454b-97bd-aadfdeb4c340"
HEX = "a1" * 32


def words_of(found: Any) -> str:
    """Return a value in words: the name of its type, and what it has."""
    if not dataclasses.is_dataclass(found):
        return str(found)
    fields = (getattr(found, field.name) for field in dataclasses.fields(found))
    given_ = [
        ",".join(each) if isinstance(each, tuple) else str(each)
        for each in fields
        if each not in {None, "", ()}
    ]
    return " ".join([type(found).__name__, *given_])


def owners(text: str) -> list[str]:
    found = dict[str, None]()
    for path in text.split(" "):
        lines = [f"{number}:{name}:{path}" for number, name in ((12, "memory"), (3, "cpu,cpuacct"))]
        in_version_1 = "\n".join([*lines, "0::/", ""]).encode()
        owner = parse_owner(f"0::{path}\n".encode())
        assert parse_owner(in_version_1) == owner
        found[words_of(owner)] = None
    return list(found)


COMMANDS: dict[str, Callable[[str], Any]] = {
    "owner": owners,
    "list": lambda text: parse_owner(text.replace("\\n", "\n").encode()),
    "qemu": lambda text: runtimes.parse_qemu_command("\0".join(each.strip("_") for each in text.split(" ")).encode()),
    "domain": lambda text: runtimes.parse_domain(text.encode()),
    "environ": lambda text: slurm.parse_slurm_variables(text.replace("|", "\0").encode()),
    "container": lambda text: runtimes.parse_docker_container(text.encode(), "team"),
    "title": lambda text: slurm.parse_step_title(text.replace("|", "\0").encode()),
}  # fmt: skip


def run(line: str) -> list[str]:
    """Run a command; see the top of this module."""
    word, _, text = line.partition(" ")
    try:
        found = COMMANDS[word](text)
    except (OwnerFormatError, SlurmFormatError) as problem:
        return [f"! {problem}"]
    return found if isinstance(found, list) else [words_of(found)]


def test_story(story: Story) -> None:
    story.play(run)


@given(st.binary(max_size=200))
def test_any_file_is_read_or_rejected(content):
    for parse in (
        parse_owner,
        slurm.parse_slurm_variables,
        slurm.parse_step_title,
        runtimes.parse_qemu_command,
        lambda text: runtimes.parse_docker_container(text, "team"),
        runtimes.parse_domain,
    ):
        with contextlib.suppress(OwnerFormatError, SlurmFormatError):
            parse(content)


PIECES = st.sampled_from([
    "/", "kubepods", "-pod", UID, HEX, "cri-containerd-", ".scope", ".slice", ":", "docker", "slurmstepd.scope", "/job_",
    "9" * 30, "/step_", "s", "..", "machine-qemu", "/lxc.payload.", r"\x2d", r"\xff", "user.slice/user-", "session-",
    "/slurm/uid_", "libvirt-qemu", ".service", " (deleted)", "\0",
])  # fmt: skip
BELOW = st.sampled_from([
    f"/kubepods/pod{UID}/{HEX}", f"/docker/{HEX}", f"/system.slice/docker-{HEX}.scope", "/user.slice/user-1000.slice",
    "/system.slice/slurmstepd.scope/job_211/step_0/user/task_0", "/slurm/uid_1000/job_211", "/lxc.payload.b", "/lxc/9",
    r"/machine.slice/machine-qemu\x2d2\x2dweb.scope", "/machine/qemu-1-b.libvirt-qemu", "/system.slice/b.service",
    f"/machine.slice/libpod-{HEX}.scope", "/user.slice/user-0.slice/session-1.scope", "/init.scope",
]) | st.lists(PIECES).map(lambda pieces: "/" + "".join(pieces).replace("..", "x"))  # fmt: skip
DELEGATED = [
    "/system.slice/foo.service", "/system.slice/app-web.slice/web@1.service", "/system.slice/run-r1f.scope", "/foo.service",
    "/system.slice/user@1000.service", "/system.slice/k3-dashboard.service", "/system.slice/notslurmd.service",
    "/lxc.payload.alpha", "/lxc/101", "/machine.slice/systemd-nspawn@alpha.service",
    r"/machine.slice/machine-qemu\x2d2\x2dweb.scope", "/machine/qemu-1-web.libvirt-qemu",
]  # fmt: skip


@given(st.sampled_from(DELEGATED), BELOW)
def test_a_guest_or_unit_owns_whatever_groups_it_names(group, below):
    """Only what manages jobs and pods of the node may name their groups."""
    owner = parse_owner(f"0::{group}\n".encode())
    assert parse_owner(f"0::{group}{below}\n".encode()) == owner


@given(st.lists(PIECES).map("".join))
def test_any_path_has_an_owner(path):
    assert parse_owner(f"0::/{path}\n".encode()) is not None


@given(st.text())
def test_names_of_systemd_come_back(name):
    escaped = "".join(rf"\x{byte:02x}" for byte in name.encode(errors="replace"))
    assert unescape_unit_name(escaped) == name.encode(errors="replace").decode()
