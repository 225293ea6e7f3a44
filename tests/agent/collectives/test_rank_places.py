"""Files of jobs are attributed to processes of one holder."""

from __future__ import annotations

from railscope_agent.gpus import inventory, process_lists
from railscope_agent.host.job_files import RankProcess
from railscope_agent.sources.rank_places import RankPlaces, SeenProcess

ROOT = 0


def places_of(*processes: tuple[int, int, str, str, str]) -> RankPlaces:
    """Return processes of root: number, rank, workload and owner of the claim, and name in the environment."""
    places = RankPlaces(inventory.GpuInventory(), process_lists.ProcessLists(), lambda _: ())
    for pid, rank, workload, owner, job in processes:
        facts = {"source": "kubernetes", "workload": workload, "owner": owner} if workload else {}
        process = RankProcess(ROOT, rank, [job], own_pid=1)
        places.processes[pid] = SeenProcess(process, facts | {"pid": str(pid)}, 0)
    return places


def ranks(places: RankPlaces, job: str) -> dict[int, str]:
    return {rank: facts["pid"] for rank, facts in places.of_job((job, ROOT)).items()}


def test_a_user_with_one_holder_needs_no_directory_of_the_job() -> None:
    places = places_of((10, 0, "red/a", "red", ""), (11, 1, "red/b", "red", ""))
    assert ranks(places, "") == ranks(places, "unknown") == {0: "10", 1: "11"}


def test_a_user_with_several_holders_needs_a_directory_that_names_the_workload() -> None:
    places = places_of((10, 0, "red/a", "red", ""), (11, 0, "blue/b", "blue", ""))
    assert ranks(places, "") == ranks(places, "unknown") == {}
    assert (ranks(places, "a"), ranks(places, "b")) == ({0: "10"}, {0: "11"})
    assert places.of_own_pid(("a", ROOT), 1)["owner"] == "red"
    assert places.of_own_pid(("", ROOT), 1) == {}
    assert places.of_own_pid(("a", ROOT + 1), 1) == {}


def test_a_name_in_the_environment_does_not_make_a_process_part_of_the_workload() -> None:
    places = places_of((10, 0, "red/a", "red", "b"), (11, 1, "blue/b", "blue", "b"))
    assert ranks(places, "b") == {1: "11"}


def test_pods_of_one_name_in_two_namespaces_are_not_distinguished() -> None:
    places = places_of((10, 0, "red/a", "red", ""), (11, 0, "blue/a", "blue", ""))
    assert ranks(places, "a") == {}


def test_processes_without_a_claim_have_the_job_of_their_environment() -> None:
    places = places_of((10, 0, "", "", "77"), (11, 0, "", "", "78"))
    assert ranks(places, "77") == {0: "10"}
    assert ranks(places, "") == {}
