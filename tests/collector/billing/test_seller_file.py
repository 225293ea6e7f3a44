"""Seller and payers, as TOML."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from railscope.settings import SettingsError
from railscope_collector.files import seller_file
from railscope_collector.files.seller_file import (
    GpuRegion,
    PayerAccount,
    Seller,
    find_seller,
    parse_seller,
)


def test_the_example_in_the_documentation_is_one():
    lines = (seller_file.__doc__ or "").splitlines()
    example = "\n".join(line for line in lines if line.startswith("    "))
    assert parse_seller(inspect.cleandoc(example)) == Seller(
        provider="Example Data Center",
        accounts={
            "language": PayerAccount(
                "research", "Research", "Account", "Language models", {"CostCenter": "4711"}
            )
        },
        region=GpuRegion("hall-1", "Machine hall 1"),
    )


def test_the_sample_can_be_read(tmp_path: Path):
    sample = Path(__file__).parents[3] / "deploy" / "seller.toml"
    assert find_seller(str(sample), ()) == Seller("GPU cluster")
    text = re.sub(r"^# (?=\[|\w+ = )", "", sample.read_text(), flags=re.MULTILINE)
    found = parse_seller(text)
    assert found.region == GpuRegion("hall-1", "Machine hall 1")
    assert found.accounts["team-red"].tags == {"CostCenter": "4711"}
    with pytest.raises(SettingsError, match=r"^cannot read seller_file .*missing"):
        find_seller(str(tmp_path / "missing.toml"), ())
