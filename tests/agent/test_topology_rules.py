"""The section [topology] of the settings: accepted values and their precedence."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.machine import FakeHost
from support.pci_bus import add_gpu, add_nic
from support.reading import read_once

from railscope import settings
from railscope.settings import SettingsError
from railscope_agent.config import PREFIX, AgentSettings, TopologySettings
from railscope_agent.sampling.probe_result import ProbeVerdict
from railscope_agent.service import Agent
from railscope_agent.sources.rdma import RdmaSource
from railscope_agent.topology.network import NetworkScanner
from railscope_agent.topology.network_device import NetworkDevice, NodeNetwork
from railscope_agent.topology.rail_rules import ROLES, parse_rail_rules


def server(count: int = 4) -> FakeHost:
    """Return a host with pairs of GPU and NIC at switches, and a storage NIC without a GPU."""
    host = FakeHost()
    for place in range(count):
        root, switch = f"pci0000:{place + 1}0", f"0000:{place + 1}0:01.0/0000:{place + 1}1:00.0"
        add_gpu(host, f"{root}/{switch}/0000:{place + 1}2:01.0/0000:{place + 1}4:00.0")
        path = f"{root}/{switch}/0000:{place + 1}2:00.0/0000:{place + 1}3:00.0"
        add_nic(host, path, f"mlx5_{place + 2}", interface=f"rail{place}")
    add_nic(host, "pci0000:80/0000:80:01.0/0000:81:00.0", "mlx5_0", interface="store0")
    return host


def scan(host: FakeHost, **given: object) -> NodeNetwork:
    return NetworkScanner(parse_rail_rules(TopologySettings(**given))).scan(host)  # type: ignore[arg-type]


def named(network: NodeNetwork, name: str) -> NetworkDevice:
    (device,) = [device for device in network.devices if name in device.names]
    return device


def nic_rails(network: NodeNetwork) -> dict[str, int | None]:
    return {device.rdma[0]: device.rail for device in network.devices}


# Invalid settings
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"rails": {"mlx5_0": -1}}, "topology.rails: mlx5_0 = -1: expected 0 or more"),
        ({"roles": {"mlx5_0": "fast"}}, "mlx5_0 = 'fast': expected one of compute, storage"),
        ({"roles": {"mlx5_(": "storage"}}, r"topology.roles: 'mlx5_\(': expected a regular expression"),
        ({"expected_megabits_per_second": {"compute": 0}}, "expected_megabits_per_second: compute = 0: expected Mb/s"),
        ({"rail_pattern": "rail["}, "topology.rail_pattern: 'rail\\[': expected a regular expression"),
        ({"rail_pattern": r"rail(\d+)"}, r"expected a group \(\?P<rail>"),
        ({"nccl_file": "/nowhere/topo.xml"}, "cannot read topology.nccl_file /nowhere/topo.xml: No such"),
        (
            {"rails": {"mlx5_3": 1}, "roles": {"mlx5_.*": "storage"}},
            "conflicting role of mlx5_3: topology.rails contains it, and topology.roles contains mlx5_.* = 'storage'",
        ),
    ],
)  # fmt: skip
def test_invalid_settings_name_the_expected_form(given: dict[str, object], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        scan(FakeHost(), **given)
    with pytest.raises(SettingsError, match=problem):
        Agent(AgentSettings(topology=TopologySettings(**given)), FakeHost())  # type: ignore[arg-type]


def test_a_file_that_is_not_a_topology(tmp_path: Path) -> None:
    file = tmp_path / "topo.xml"
    file.write_text("<graphs/>")
    with pytest.raises(SettingsError, match=r"topo\.xml: unexpected root element 'graphs'"):
        scan(FakeHost(), nccl_file=str(file))


def test_the_section_as_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "agent.toml"
    file.write_text(
        '[topology]\nrails = { mlx5_0 = 3 }\nroles = { "mlx5_[67]" = "storage" }\n'
        "rail_pattern = 'rail(?P<rail>\\d+)'\n"
    )
    loaded = settings.load(AgentSettings, file=file, environment={}, prefix=PREFIX)
    assert parse_rail_rules(loaded.topology).find_rail(["mlx5_0"]) == (
        3,
        "topology.rails contains mlx5_0",
    )
    assert parse_rail_rules(loaded.topology).find_role(["mlx5_7"]) == (
        "storage",
        "topology.roles contains mlx5_[67]",
    )
    file.write_text("[topology]\nrail_patern = ''\n")
    with pytest.raises(SettingsError, match="did you mean 'rail_pattern'"):
        settings.load(AgentSettings, file=file, environment={}, prefix=PREFIX)
    file.write_text('[topology]\nrails = { mlx5_0 = "first" }\n')
    with pytest.raises(SettingsError, match="int"):
        settings.load(AgentSettings, file=file, environment={}, prefix=PREFIX)


# Precedence --------------------------------------------------------------------------------


def test_without_settings_the_tree_decides() -> None:
    network = scan(server())
    assert nic_rails(network) == {
        "mlx5_0": None,
        "mlx5_2": 0,
        "mlx5_3": 1,
        "mlx5_4": 2,
        "mlx5_5": 3,
    }
    assert network.problems == ()


def test_names_assign_rails_to_nics_and_their_gpus() -> None:
    """With reversed cabling, the GPU has the rail of its NIC."""
    for given in (
        {"rails": {"mlx5_2": 3, "mlx5_3": 2, "mlx5_4": 1, "mlx5_5": 0}},
        {"rails": {"rail0": 3, "0000:23:00.0": 2, "mlx5_4": 1, "rail3": 0}},
    ):
        network = scan(server(), **given)
        found = {"mlx5_0": None, "mlx5_2": 3, "mlx5_3": 2, "mlx5_4": 1, "mlx5_5": 0}
        assert nic_rails(network) == found
        assert list(network.gpu_rails.values()) == [3, 2, 1, 0]
    assert named(network, "mlx5_3").reason == "topology.rails contains 0000:23:00.0"


def test_a_pattern_gives_rails_by_the_names_of_interfaces() -> None:
    network = scan(server(), rail_pattern=r"rail(?P<rail>\d+)", rails={"rail1": 7})
    assert nic_rails(network) == {
        "mlx5_0": None,
        "mlx5_2": 0,
        "mlx5_3": 7,
        "mlx5_4": 2,
        "mlx5_5": 3,
    }
    assert named(network, "mlx5_2").reason == "topology.rail_pattern matches rail0"


def test_a_name_can_assign_a_rail_to_a_distant_nic() -> None:
    network = scan(server(), rails={"store0": 4})
    assert named(network, "mlx5_0").facts == {"role": "compute", "rail": "4"}


def test_a_gpu_whose_named_nic_is_missing_has_no_rail() -> None:
    host = server()
    del host.links["/sys/class/infiniband/mlx5_3/device"]
    network = scan(host, rail_pattern=r"rail(?P<rail>\d+)", roles={"rail1": "management"})
    assert list(network.gpu_rails.values()) == [0, 2, 3]


def test_a_role_excludes_a_nic_from_the_rails() -> None:
    network = scan(server(), roles={"mlx5_2": "storage", "mlx5_0": "compute"})
    assert nic_rails(network) == {
        "mlx5_0": None,
        "mlx5_2": None,
        "mlx5_3": 1,
        "mlx5_4": 2,
        "mlx5_5": 3,
    }
    assert named(network, "mlx5_2").facts == {"role": "storage"}
    assert named(network, "mlx5_0").facts == {"role": "compute"}


def test_the_first_role_that_fits_counts() -> None:
    network = scan(server(), roles={"mlx5_0": "management", "mlx5_.*|rail.*": "storage"})
    roles = [device.role for device in network.devices]
    assert sorted(roles) == ["management", *["storage"] * 4]


def test_a_rail_by_name_and_another_by_distance_contradict() -> None:
    """The rail of the unnamed NIC is unknown: it may be any."""
    network = scan(server(), rails={"mlx5_5": 0})
    assert nic_rails(network) == {
        "mlx5_0": None,
        "mlx5_2": None,
        "mlx5_3": 1,
        "mlx5_4": 2,
        "mlx5_5": 0,
    }
    (problem,) = network.problems
    assert problem == (
        "conflicting rail 0 of mlx5_2 (PIX to GPU 0): topology.rails contains mlx5_5; fix: specify the rail of both"
    )
    wiring = NetworkScanner(parse_rail_rules(TopologySettings(rails={"mlx5_5": 0})))
    findings = read_once(RdmaSource(wiring=wiring), server()).findings
    (finding,) = [finding for finding in findings if finding.subject == "rails"]
    assert (finding.verdict, finding.detail) == (ProbeVerdict.BROKEN, problem)


def test_a_rail_for_a_device_without_compute_role_contradicts() -> None:
    network = scan(server(), rails={"rail1": 1}, roles={"mlx5_3": "storage"})
    (problem,) = network.problems
    assert problem.startswith(
        "mlx5_3: topology.rails contains rail1, but it is not a compute device"
    )
    assert named(network, "mlx5_3").facts == {"role": "storage"}


def test_names_without_a_match_are_reported() -> None:
    given = {
        "rails": {"mlx5_2": 0, "mlx5_O": 1},
        "roles": {"store.*": "storage", "eth9": "storage"},
    }
    speeds = {"compute": 400_000, "mlx5_0": 200_000, "mlx5_8": 200_000}
    network = scan(server(), **given, expected_megabits_per_second=speeds)
    assert (network.unused, network.problems) == (("mlx5_O", "mlx5_8", "eth9"), ())


def test_a_pattern_without_a_number_assigns_nothing() -> None:
    assert (
        parse_rail_rules(TopologySettings(rail_pattern="rail(?P<rail>.*)")).find_rail(["railway"])
        is None
    )


def test_the_speed_of_a_link_is_that_of_its_name_or_else_of_its_role() -> None:
    given = parse_rail_rules(
        TopologySettings(expected_megabits_per_second={"compute": 400_000, "ens1": 200_000})
    )
    assert given.expected_speed(["ens1", "mlx5_0", "compute"]) == 200_000
    assert given.expected_speed(["ens2", "mlx5_3", "compute"]) == 400_000
    assert given.expected_speed(["eth0", "management"]) is None


def test_the_settings_of_the_page_are_right(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "readings.md").read_text()
    file = tmp_path / "agent.toml"
    file.write_text(page.partition("```toml\n")[2].partition("```")[0])
    loaded = settings.load(AgentSettings, file=file, environment={}, prefix=PREFIX)
    assert parse_rail_rules(loaded.topology).find_rail(["rail7"]) == (
        7,
        "topology.rail_pattern matches rail7",
    )
    for role in ROLES:
        assert f"| `{role}` |" in page
