"""Invalid topology files, and CPU masks."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from railscope_agent.topology.nccl_topology import NcclFileError
from railscope_agent.topology.nccl_xml import format_cpu_list, parse_nccl_topology


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"<system", "invalid XML"),
        (b"\xff\xfe", "invalid XML"),
        (b"<graph/>", "'graph': expected 'system'"),
        (b'<system><cpu numaid="0"><pci busid="3b:00"/></cpu></system>', "invalid busid '3b:00'"),
        (b"<system><cpu><pci/></cpu></system>", "invalid busid ''"),
        (b'<system><cpu><pci busid="x:y"/></cpu></system>', "invalid busid 'x:y'"),
        (b'<system><cpu affinity="zz"/></system>', "invalid affinity 'zz'"),
        (b'<system><cpu affinity="-1"/></system>', "invalid affinity '-1'"),
        (b'<system><cpu affinity="ff,,ff"/></system>', "invalid affinity 'ff,,ff'"),
        (
            b'<system><cpu><pci busid="0:1:00.0"/></cpu></system>'.replace(b"0:1", b"0000:01")
            .replace(b"</cpu>", b'<pci busid="0000:01:00.0"/></cpu>'),
            "duplicate PCI address",
        ),
        (
            b'<system><cpu><pci busid="0000:01:00.0"><gpu><nvlink target="0000:02:00.0" count="many"/></gpu></pci></cpu></system>',
            "invalid number of links 'many'",
        ),
        (
            b'<system><cpu><pci busid="0000:01:00.0"><gpu><nvlink target="0000:02:00.0" count="N"/></gpu></pci></cpu></system>'.replace(b"N", b"9" * 5000),
            "invalid number of links '9999",
        ),
        (b'<?xml version="1.0" encoding="none"?><system/>', "invalid XML: unknown encoding"),
        (b'<?xml version="1.0" encoding="gbk"?><system/>', "invalid XML: multi-byte encodings"),
        (b'<!DOCTYPE x [<!ENTITY a "b">]><system/>', "unexpected DOCTYPE or entity"),
    ],
)  # fmt: skip
def test_an_invalid_topology_is_rejected_with_the_reason(content: bytes, problem: str) -> None:
    with pytest.raises(NcclFileError, match=problem):
        parse_nccl_topology(content)


def test_capital_letters_long_domains_and_an_unknown_node() -> None:
    found = parse_nccl_topology(
        b'<system><cpu numaid="-1"><pci busid="00000000:3B:00.0"/></cpu></system>'
    )
    assert found.places["0000:3b:00.0"].numa_node == ""


@pytest.mark.parametrize(
    "target", ["xyz:1", "fffffff", "", ":", "-1:00.0", "0000:02:00", "\u0663:1"]
)
def test_a_link_to_an_end_without_an_address_is_no_link_of_a_gpu(target: str) -> None:
    text = f'<system><cpu><pci busid="0000:01:00.0"><gpu><nvlink target="{target}"/></gpu></pci></cpu></system>'
    found = parse_nccl_topology(text.encode())
    assert (list(found.places), found.links) == (["0000:01:00.0"], {})


@given(st.sets(st.integers(0, 300), min_size=1))
def test_masks_of_cpus(cpus) -> None:
    value = sum(1 << cpu for cpu in cpus)
    masks = []
    while value or not masks:
        masks.insert(0, f"{value & 0xFFFFFFFF:08x}")
        value >>= 32
    listed: set[int] = set()
    for part in format_cpu_list(",".join(masks)).split(","):
        first, _, last = part.partition("-")
        listed |= set(range(int(first), int(last or first) + 1))
    assert listed == cpus


def test_no_cpus() -> None:
    assert format_cpu_list("00000000,00000000") == ""
