"""The demo's tables: the worst rows come first."""

from __future__ import annotations

from typing import Any

from railscope_simulator.demo.report import tables

ACCOUNT = {"tenants": {}, "states": {"idle": "0", "unknown": "0"}, "gpus": 0, "capacity_ns": "0",
           "balances": True}  # fmt: skip


def node(name: str, *, reporting: bool) -> dict[str, Any]:
    return {"node": name, "railscope_node_reporting": int(reporting), "gpus": 8, "streams": ["gpu"]}


def rail(number: int, name: str, value: float) -> dict[str, Any]:
    return {"labels": {"rail": str(number)}, "metric": f"railscope_rail_{name}", "value": value}


def test_stale_nodes_and_paused_rails_are_first() -> None:
    views = {
        "cluster": {"rows": []},
        "nodes": {"rows": [node("a", reporting=True), node("b", reporting=False)]},
        "rails": {
            "rows": [
                rail(0, "max_nic_transmit_pfc_pause_ratio", 0.001),
                rail(1, "max_nic_receive_pfc_pause_ratio", 0.0),
                rail(2, "max_nic_transmit_pfc_pause_ratio", 0.4),
                rail(3, "max_nic_receive_pfc_pause_ratio", 0.2),
            ]
        },
        "account": ACCOUNT,
    }
    lines = tables(views).splitlines()
    firsts = [line.split(" ")[0] for line in lines]
    place = {name: firsts.index(name) for name in ("a", "b", "0", "1", "2", "3")}
    assert place["b"] < place["a"]
    assert place["2"] < place["3"] < place["0"] < place["1"]
