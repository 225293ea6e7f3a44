"""A redacted recording: no identifying text, and the same readings when replayed."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, strategies as st
from support.cases import capture_of, few_of, names
from support.tree import HOSTNAME, make_tree

from railscope.capture import Capture, CaptureMoment
from railscope_agent.commands import agent
from railscope_agent.commands.read_once import CaptureWalk
from railscope_agent.config import AgentSettings
from railscope_agent.host import redactor as harmless
from railscope_agent.host.redactor import Redactor
from railscope_agent.service import Agent

SECRETS = (
    "acme", "globex", "payroll", "hooli", "nas01", "oss17", "hunter2", "Überbank", "kunde42",
    "S5XYNG0R", "WD40EFAX", "sauron", "mordor", "initech", "10.20.30.40", "2001:db8::77",
    "fe80::1c2d:3eff:fe4f:5a6b", "52:54:00:ab:cd:ef",
)  # fmt: skip
PLANTED = {
    "files": {
        "/proc/self/mountstats": "device nas01.acme.example:/export/payroll mounted on /mnt/globex"
        " with fstype nfs4 statvers=1.1\n\topts:\trw,vers=4.2,addr=10.20.30.40,clientaddr="
        "10.20.30.40\n\tage:\t1234\n\tREAD: 1 2 0 3 4 5 6 7 0\n",
        "/proc/mounts": "/dev/mapper/initech-home /home/sauron ext4 rw 0 0\n"
        "10.20.30.40@o2ib:/hooli /lustre/hooli lustre rw 0 0\n",
        "/proc/fs/lustre/osc/oss17-OST0001-osc-ffff/stats": "read_bytes 3 samples [bytes] 1 2 3\n",
        "/proc/fs/lustre/mdc/x/import": "target: hooli-MDT0000_UUID\n"
        "current_connection: 10.20.30.40@o2ib\n",
        "/sys/kernel/debug/ceph/c0ffee00-1111-2222-3333-444455556666.client4712/mdsc": "0\n",
        "/proc/net/bonding/bond-initech": "Slave Interface: globex0\nMAC: 52:54:00:ab:cd:ef\n",
        "/sys/class/net/bond-initech/bonding/slaves": "globex0 globex1\n",
        "/sys/class/net/globex0/ifalias": "uplink of Überbank kunde42\n",
        "/sys/class/infiniband/mlx5_0/node_desc": "mordor HCA-1\n",
        "/proc/4711/comm": "payroll-train\n",
        "/proc/4711/cgroup": "0::/system.slice/docker-" + "ab" * 32 + ".scope\n"
        "0::/machine.slice/machine-qemu\\x2d2\\x2dinitech.scope\n",
        "/proc/net/route": "Iface\tDestination\tGateway\tFlags\nglobex0\t0000140A\t281E140A\t0003\n",
        "/sys/block/sda/device/model": "WD40EFAX\n",
    },
    "names": {"/sys/class/net": ["bond-initech", "eth0", "globex0"], "/var/log/pods": ["acme_x-0_1"]},
    "links": {"/sys/class/net/globex0/device": "/sys/devices/pci0000:15/0000:15:01.0"},
    "calls": {
        "psutil.disk_partitions()": [["/dev/mapper/initech-home", "/home/sauron", "ext4", "rw"]],
        "psutil.net_if_addrs()": {"globex0": ["10.20.30.40", "2001:db8::77"]},
        "psutil.disk_io_counters()": {"initech-home": [1, 2, 3], "nvme0n1": [4, 5, 6]},
        "netlink.links()": [{"name": "globex0", "alias": "Überbank", "kind": "bond",
                           "addresses": ["fe80::1c2d:3eff:fe4f:5a6b"]}],
        "lldp.neighbours()": {"eth0": {"system": "leaf-mordor", "port": "Ethernet9/2"}},
        "owner.container(/acme)": {"name": "acme-web", "label": "kunde42", "id": "ab" * 32},
        "nvme.smart(nvme0)": {"serial": "S5XYNG0R", "model": "WD40EFAX", "hours": 4711},
        "kubelet.List()": [{"name": "payroll-0", "namespace": "acme"}],
    },
}  # fmt: skip
LOG = [
    "6,1,2,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=4711, name=payroll, GPU has fallen off the bus.",
    "4,2,3,-;nfs: server nas01.acme.example not responding, user sauron, hunter2",
]


def redacted(moment: CaptureMoment) -> CaptureMoment:
    return Redactor(["node7"]).redact_moment(moment)


def test_planted_secrets_are_gone():
    text = redacted(CaptureMoment(0, **PLANTED, log=LOG)).to_line()
    text = json.dumps(json.loads(text), ensure_ascii=False)
    left = [secret for secret in SECRETS if re.search(re.escape(secret), text, re.IGNORECASE)]
    assert left == []
    for address in ("281E140A", "0000140A", "ab" * 32, "c0ffee00", "client4712"):
        assert address not in text


def test_harmless_texts_are_kept():
    moment = redacted(CaptureMoment(0, **PLANTED, log=LOG))
    mounts = next(text for path, text in moment.files.items() if path.endswith("mountstats"))
    assert "with fstype nfs4 statvers=1.1" in mounts
    assert "READ: 1 2 0 3 4 5 6 7 0" in mounts
    assert "Xid (PCI:0000:1b:00): 79, pid=4711" in moment.log[0]
    assert "eth0" in moment.names["/sys/class/net"]
    assert moment.calls["psutil.disk_io_counters()"]["nvme0n1"] == [4, 5, 6]


@given(st.text(st.characters(categories=("L",)), min_size=6, max_size=20))
def test_a_text_outside_the_format_vocabulary_is_always_redacted(text: str):
    token = f"q{text}z"
    if not harmless.is_harmless(token):
        assert token not in Redactor().scrub(f"/mnt/{token}/x addr={token}")
    assert not harmless.is_harmless(f"qzj{text}")


def test_the_command_leaves_no_planted_secret(tmp_path: Path):
    root = make_tree(tmp_path / "root")
    for path, content in PLANTED["files"].items():
        file = root / path[1:]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    outcome = CliRunner().invoke(
        agent, ["record", "--root", str(root), "--seconds", "0", "--redact", str(tmp_path / "c")]
    )
    assert outcome.exit_code == 0, outcome.output
    lines = (tmp_path / "c/timeline.jsonl").read_text().splitlines()
    text = json.dumps([json.loads(line) for line in lines], ensure_ascii=False)
    text += (tmp_path / "c/capture.toml").read_text()
    assert "mountstats" in text or "bonding" in text, "planted files were read"
    assert [one for one in (*SECRETS, HOSTNAME) if one.lower() in text.lower()] == []


def readings(capture: Capture) -> dict[str, list[str]]:
    """Every value by metric, without labels, of a capture read to its end."""
    walk = CaptureWalk(capture)
    agent = Agent(AgentSettings(), walk.host, node="n")
    asyncio.run(walk.read(agent))
    found: dict[str, list[str]] = {}
    for frame in agent.endpoint.fresh_frames():
        if frame.schema.stream in {"agent", "self"}:
            continue
        for metric, _, reading in frame.readings():
            found.setdefault(metric.name, []).append(repr(reading))
    return {name: sorted(values) for name, values in found.items()}


@pytest.mark.parametrize("case", few_of(names()))
def test_a_redacted_case_reads_like_the_original(case: str):
    capture = capture_of(case)
    redactor = Redactor([capture.about.node])
    hidden = Capture(capture.about, tuple(map(redactor.redact_moment, capture.moments)))
    before, after = readings(capture), readings(hidden)
    assert before.keys() == after.keys()
    different = {name for name in before if before[name] != after[name]}
    assert different == set()
