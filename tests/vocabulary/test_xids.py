"""Xids and SXids: the tables are complete, and a message is judged by its number and its text."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st
from support.shared import capture_path

from railscope.catalog.xids import (
    ACTION_ORDER,
    Judgement,
    judge,
    xid,
    xids,
)
from railscope_agent.streams.kernel_messages import parse_kernel_message, strip_log_prefix

SEVERITIES = {"fatal", "nonfatal", "unknown"}


def are_known(actions: tuple[str, ...]) -> bool:
    """Known terms, each once, from mildest to hardest; `ignore` stands alone."""
    ordered = tuple(action for action in ACTION_ORDER if action in actions)
    return actions == ordered and bool(actions) and ("ignore" not in actions or len(actions) == 1)


@pytest.mark.parametrize(
    ("number", "severity", "actions"),
    [
        (13, "nonfatal", ("restart_app",)),
        (43, "nonfatal", ("restart_app",)),
        (63, "nonfatal", ("ignore",)),
        (64, "fatal", ("drain", "reset_gpu", "rma")),
        (74, "fatal", ("drain", "reset_gpu")),
        (79, "fatal", ("drain", "reboot")),
        (119, "fatal", ("drain", "reset_gpu", "reboot")),
        (122, "unknown", ("rma",)),
        (143, "fatal", ("reset_gpu", "reboot")),
        (160, "fatal", ("reboot",)),
        (161, "unknown", ("rma",)),
        (172, "unknown", ("drain", "reset_gpu")),
        (176, "unknown", ("ignore",)),
    ],
)
def test_an_xid_requires_its_actions(number: int, severity: str, actions: tuple[str, ...]) -> None:
    assert (xid(number).severity, xid(number).actions) == (severity, actions)
    assert judge(number, "") == Judgement(severity, actions, xid(number).immediate)


@pytest.mark.parametrize("number", [-1, 0, 7, 177, 999, 10**30])
def test_a_number_that_no_table_has_is_unknown(number: int) -> None:
    found = xid(number)
    assert found.number == number
    assert (found.name, found.severity, found.actions) == ("unknown", "unknown", ("ignore",))
    assert judge(number, "Fatal") == Judgement("unknown", ("ignore",), "")


@pytest.mark.parametrize(
    ("to", "severity", "actions"),
    [
        ("0x0 (None)", "nonfatal", ("ignore",)),
        ("0x1 (GPU Reset Required)", "fatal", ("reset_gpu",)),
        ("0x2 (Node Reboot Required)", "fatal", ("reboot",)),
        ("0x3 (Drain P2P)", "nonfatal", ("drain", "reset_gpu")),
        ("0x4 (Drain and Reset)", "nonfatal", ("drain", "reset_gpu")),
        ("0x5 (Recover IMEX Domain)", "nonfatal", ("ignore",)),
        ("0x6 (Bus Reset)", "fatal", ("reset_gpu",)),
        ("0x7 (System Reboot)", "fatal", ("reboot",)),
        ("0x9 (Node Reboot Required)", "fatal", ()),
        ("0x1 (PF FLR)", "fatal", ("reset_gpu",)),
        ("0x2 (OS Reboot)", "fatal", ("reboot",)),
        ("0xff (Something New)", "fatal", ()),
    ],
)
def test_the_number_in_xid_154_decides_whatever_the_wording(
    to: str, severity: str, actions: tuple[str, ...]
) -> None:
    message = f"GPU recovery action changed from 0x2 (Node Reboot Required) to {to}"
    terms = to.partition("(")[2].rstrip(")")
    assert judge(154, message) == Judgement(severity, actions, terms)


@pytest.mark.parametrize("number", range(144, 151))
def test_an_error_of_nvlink_5_is_classified_by_its_severity(number: int) -> None:
    terms = "XC0 i0 Link 08 (0x004505c6 0x00000000 0x00000000)"
    for term in ("Nonfatal", "Non-fatal", "Non-Fatal"):
        assert judge(number, f"RLW_REMAP {term} {terms}") == Judgement(
            "nonfatal", ("ignore",), f"WORKFLOW_NVLINK5_ERR ({term})"
        )
    assert judge(number, f"NETIR_LINK_EVT  Fatal   {terms}") == Judgement(
        "fatal", ("drain", "reset_gpu"), "WORKFLOW_NVLINK5_ERR (Fatal)"
    )
    assert judge(number, terms) == Judgement("fatal", ("ignore",), "WORKFLOW_NVLINK5_ERR")


@pytest.mark.parametrize(
    ("number", "wanted", "actions"),
    [
        (94, "RST: No, D-RST: No", ("restart_app",)),
        (94, "RST: Yes, D-RST: No", ("restart_app", "reset_gpu")),
        (94, "RST: No, D-RST: Yes", ("restart_app", "drain", "reset_gpu")),
        (94, "RST: Yes, D-RST: Yes", ("restart_app", "drain", "reset_gpu")),
        (95, "RST: No, D-RST: No", ("drain", "reset_gpu")),
        (95, "RST: Yes, D-RST: No", ("drain", "reset_gpu")),
    ],
)
def test_a_memory_error_may_require_more(
    number: int, wanted: str, actions: tuple[str, ...]
) -> None:
    found = judge(number, f"Contained: CE User Channel (0x9). {wanted}")
    assert found.actions == actions
    assert found.severity == xid(number).severity
    assert found.nvidia == f"{xid(number).immediate} ({wanted})"


def test_every_quoted_line_gets_a_judgement() -> None:
    head, *rows = capture_path("kernel-log/xid-sxid-lines.tsv").read_text().splitlines()
    assert head.startswith("kind\tcode\tclass\tline\t")
    found = Counter[tuple[int, str, tuple[str, ...]]]()
    for kind, code, _, line, _ in (row.split("\t") for row in rows):
        message = parse_kernel_message(strip_log_prefix(line))
        if kind != "Xid":
            continue
        assert message is not None
        number = int(message.entity.key[1])
        judgement = judge(number, message.facts.get("message", ""))
        assert number == int(code)
        assert judgement.severity in SEVERITIES
        assert are_known(judgement.actions)
        assert judgement.nvidia
        if number in range(144, 151):
            assert judgement.severity == ("nonfatal" if "Nonfatal" in line else "fatal")
        found[number, judgement.severity, judgement.actions] += 1
    assert found[154, "fatal", ("reset_gpu",)] == 2
    assert found[154, "nonfatal", ("drain", "reset_gpu")] == 1
    assert found[149, "fatal", ("drain", "reset_gpu")] > 10
    assert found[149, "fatal", ("ignore",)] == 0


FRAGMENTS = st.sampled_from(
    ["to 0x", "0x", "1", "f" * 5000, " (", ")", "None", "GPU Reset Required", "Reset", "RST: Yes",
     ", D-RST: No", ", D-RST: Yes", "Fatal", "Nonfatal", "non-", " ", "\n", "\N{ARABIC-INDIC DIGIT TWO}"]
)  # fmt: skip
MESSAGES = st.text() | st.lists(FRAGMENTS | st.text(max_size=3)).map("".join)


@given(number=st.integers() | st.sampled_from(list(xids())), message=MESSAGES)
def test_any_number_and_any_text_are_classified_in_known_terms(number: int, message: str) -> None:
    found = judge(number, message)
    assert found.severity in SEVERITIES
    assert are_known(found.actions)
    assert found == judge(number, message)
