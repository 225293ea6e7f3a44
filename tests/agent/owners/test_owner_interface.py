"""The owner interface of the host: only the requested fields of foreign files are returned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from railscope_agent.host.live_host import LiveHost
from railscope_agent.host.redactor import Redactor

HEX = "ab" * 32
DOMAIN = """<domain><name>web</name><uuid>u</uuid><devices>
<graphics passwd='hunter2'/><hostdev type='pci'><source><address domain='0x0' bus='0x3b' slot='0x0'
function='0x0'/></source></hostdev></devices></domain>"""


@pytest.fixture
def tree(tmp_path: Path) -> LiveHost:
    files = {
        "proc/7/environ": "SECRET=hunter2\0SLURM_JOB_ID=12\0PATH=/bin\0SLURM_JOB_GPUS=0,1\0",
        "proc/7/cmdline": "qemu-kvm\0-name\0web\0-object\0secret,data=hunter2\0",
        "proc/8/cmdline": "python3\0--password=hunter2\0",
        f"var/lib/docker/containers/{HEX}/config.v2.json": json.dumps(
            {"Name": "/jupyter", "Config": {"Env": ["TOKEN=hunter2"], "Labels": {"team": "vision"}}}
        ),
        "run/libvirt/qemu/web.xml": DOMAIN,
        "etc/passwd": "root:x:0:0::/root:/bin/sh\neva:x:1000:1000::/home/eva:/bin/sh\n",
    }
    for path, content in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    return LiveHost(tmp_path)


def test_only_requested_fields_are_returned(tree):
    answers = [
        tree.call("owner", "environ", 7),
        tree.call("owner", "container", HEX, "team"),
        tree.call("owner", "domain", "/run/libvirt/qemu/web.xml"),
        tree.call("owner", "machine", 7),
        tree.call("owner", "machine", 8),
        tree.call("owner", "user", 1000),
        tree.call("owner", "user", 4711),
    ]
    assert "hunter2" not in json.dumps(answers)
    assert answers[0] == {"SLURM_JOB_ID": "12", "SLURM_JOB_GPUS": "0,1"}
    assert answers[1] == {"name": "jupyter", "label": "vision"}
    assert answers[2]["pci_addresses"] == ["0000:3b:00.0"]
    assert answers[3]["name"] == "web"
    assert answers[4:] == [None, "eva", ""]


def test_names_are_hidden_with_their_directories():
    redactor = Redactor()
    for name in ("research", "train-0"):
        redactor.add_name(name)
    uid = "2fc932ce-fdcc-454b-97bd-aadfdeb4c340"
    directory = redactor.redact_text(f"research_train-0_{uid}")
    namespace, pod, hidden = directory.split("_")
    assert (redactor.redact_text("research"), redactor.redact_text("train-0")) == (namespace, pod)
    slice_ = redactor.redact_text(f"kubepods-pod{uid.replace('-', '_')}.slice")
    assert slice_ == f"kubepods-pod{hidden.replace('-', '_')}.slice", "a pod is found by both"
    assert "2fc932ce" not in directory + slice_
    assert redactor.redact_text("researcher") == "researcher"
