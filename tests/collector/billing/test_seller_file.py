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
from railscope_collector.files.watched_file import FileError


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


def test_little_is_enough():
    text = 'provider = "P"\npublisher = "Q"\n[tenant."a b"]\naccount = "x"\ntype = "Namespace"\n'
    expected = Seller("P", {"a b": PayerAccount("x", tenant_type="Namespace")}, publisher="Q")
    assert parse_seller(text) == expected


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ("", "provider"),
        ("provider = ", "invalid TOML"),
        ('provider = ""', "length"),
        ('provider = "P"\nissuer = "Q"', "issuer"),
        ('provider = "P"\n[region]\nid = "r"', "name"),
        ('provider = "P"\n[tenant.a]\nname = "A"', "account"),
        ('provider = "P"\n[tenant.a]\naccount = "x"\ntype = "Team"', "Team"),
        ('provider = "P"\n[tenant.a]\naccount = "x"\ntags = { a = 1 }', "tags"),
    ],
)
def test_what_is_wrong_is_named_with_the_file(tmp_path: Path, text, expected_text):
    with pytest.raises(FileError, match=expected_text):
        parse_seller(text)
    file = tmp_path / "seller.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match=f"^invalid seller_file {file}: .*{expected_text}"):
        find_seller(str(file), ())


def test_the_sample_can_be_read(tmp_path: Path):
    sample = Path(__file__).parents[3] / "deploy" / "seller.toml"
    assert find_seller(str(sample), ()) == Seller("GPU cluster")
    text = re.sub(r"^# (?=\[|\w+ = )", "", sample.read_text(), flags=re.MULTILINE)
    found = parse_seller(text)
    assert found.region == GpuRegion("hall-1", "Machine hall 1")
    assert found.accounts["team-red"].tags == {"CostCenter": "4711"}
    with pytest.raises(SettingsError, match=r"^cannot read seller_file .*missing"):
        find_seller(str(tmp_path / "missing.toml"), ())
