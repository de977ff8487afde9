"""What is needed before ranks are attached: what launchers say, and a line on which nobody else is heard."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch._C._distributed_c10d import HashStore, PrefixStore

from harness.attached import pytest_arguments
from harness.worlds import wire
from harness.worlds.attached import fleet as attached_fleet
from harness.worlds.attached.launch import launched, machine, open_store
from harness.worlds.attached.pmi import Mpiexec
from harness.worlds.attached.sealed_line import AGENT, CONTROLLER, SealedLine
from tests.attached.attaching import knock, mpiexec
from tests.patience import GUARD

KEY = b"the key of a run"


def test_strangers_are_not_admitted_and_hold_nobody_up() -> None:
    """Who connects without the key, and says garbage, too much, or nothing, hears nothing; an agent is let in."""
    with attached_fleet.listening("127.0.0.1", KEY) as (port, arrivals):
        silent = socket.create_connection(("127.0.0.1", port))
        for says in (bytes(range(256)) * 40, b"\0" * 4096, b"\xff" * 10_000):
            assert len(knock(port, says)) == 32, "a number that was never used before, and no more"
        for key, rank in ((b"another key", 1), (KEY, 2)):
            line = SealedLine(socket.create_connection(("127.0.0.1", port)), key, AGENT)
            line.send(wire.encode([rank, "node", 0]))
        member = arrivals.get(timeout=GUARD)
        assert (member.rank, member.node, member.local) == (2, "node", 0)
        assert arrivals.empty()
        silent.close()
        member.lose("it is over")


def test_few_ranks_of_a_launch_are_on_many_nodes() -> None:
    """A world takes one rank of each node, then the next of each; rank 0 stays the controller's own."""
    assert attached_fleet.spread(["a", "a", "b", "b"]) == [0, 2, 1, 3]
    assert attached_fleet.spread(["a", "b", "c", "a"]) == [0, 1, 2, 3]
    assert attached_fleet.spread(["a"] * 8 + ["b"] * 8)[:4] == [0, 8, 1, 9]
    assert attached_fleet.spread(["one"] * 3) == [0, 1, 2]


def test_nodes_have_numbers_by_their_first_ranks() -> None:
    """Messages do not show what a launcher or this machine calls a node."""
    assert attached_fleet.numbered(["b", "b", "a", "b", "c"]) == ["0", "0", "1", "0", "2"]


def lines(*sides: bytes) -> list[SealedLine]:
    """Both ends of a line, which greet each other."""
    made: dict[int, SealedLine] = {}

    def greet(end: int, connection: socket.socket) -> None:
        made[end] = SealedLine(connection, KEY, sides[end])

    threads = [threading.Thread(target=greet, args=pair) for pair in enumerate(socket.socketpair())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [made[0], made[1]]


@pytest.mark.parametrize(
    "change",
    [lambda sent: sent[:-1] + b"?", lambda sent: sent + sent, lambda sent: sent[:4] + b"\0" * 32 + sent[36:]],
    ids=["changed", "said twice", "sealed otherwise"],
)
def test_what_is_changed_or_repeated_on_the_way_is_refused(change: Callable[[bytes], bytes]) -> None:
    """A message whose seal is not that of its content and place ends the line."""
    ours, theirs = lines(CONTROLLER, AGENT)
    ours.send(b"an order")
    sent = os.read(theirs.fileno(), 4096)
    os.write(ours.fileno(), change(sent))
    theirs.receive()
    with pytest.raises(ValueError, match="without the run's seal"):
        while theirs.next() is not None:
            pass
    ours.close()
    theirs.close()


def test_a_side_that_hears_its_own_words_refuses_them() -> None:
    """What the controller says is not taken for an agent's, whoever sends it back."""
    ours, theirs = lines(CONTROLLER, AGENT)
    ours.send(b"an order")
    os.write(theirs.fileno(), os.read(theirs.fileno(), 4096))
    ours.receive()
    with pytest.raises(ValueError, match="without the run's seal"):
        ours.next()
    ours.close()
    theirs.close()


# Launchers.

MEETING = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "GROUP_RANK": "1", "SLURM_PROCID": "0"}, (3, 4, 1, "1")),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}, (3, 4, 1, "1")),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "4"}, (1, 2, None, machine())),
        (
            {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
            (3, 4, 1, machine()),
        ),
        ({"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (3, 4, None, machine())),
    ],
    ids=["torchrun", "srun", "srun step", "Open MPI", "PMI"],
)
def test_launchers_are_understood(variables: dict[str, str], found: tuple[object, ...]) -> None:
    """Rank, size, rank on its node, and node are what the launcher says; what is inside a Slurm job is not Slurm's.

    Where the launcher names no node, the node is the machine.
    """
    launch = launched({**variables, **MEETING})
    assert (launch.rank, launch.size, launch.local, launch.node) == found
    assert (launch.address, launch.port, launch.keeps_store) == ("10.0.0.1", 29500, False)


@pytest.mark.parametrize("names", [("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")])
def test_ranks_on_one_machine_are_on_one_node_where_the_launcher_names_none(names: tuple[str, str]) -> None:
    """The record counts one node for all of them, rank 0's included, and each rank has a local rank of its own."""
    launches = [launched({names[0]: str(rank), names[1]: "4", **MEETING}) for rank in range(4)]
    store = PrefixStore("a launch", HashStore())
    with ThreadPoolExecutor(3) as pool:
        joining = [pool.submit(attached_fleet.join, launch, store) for launch in launches[1:]]
        fleet = attached_fleet.gather(launches[0], store, seconds=60)
    assert fleet.facts() == {"nodes": "1", "ranks per node": "4"}
    assert [fleet.place(rank, 4) for rank in range(4)] == [(rank, 4, True) for rank in range(4)]
    assert [fleet.place(rank, 2) for rank in range(2)] == [(rank, 2, True) for rank in range(2)]
    for line in joining:
        line.result().close()
    fleet.close()
    names = [words.partition(" is gone")[0] for words in fleet.lost()]
    assert names == [f"the agent of rank {rank} on node 0" for rank in (1, 2, 3)]


def test_rank_0_keeps_the_store_where_the_launcher_does_not() -> None:
    """It listens on the interface of that address alone, and others find what it says there."""
    first = launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"})
    store = open_store(first)
    port = store.underlying_store.port
    second = launched({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    open_store(second).set("said", "there")
    assert store.get("said") == b"there"
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    assert [line.split()[1] for line in listening.splitlines() if f":{port:04X} 0" in line and " 0A " in line] == [
        f"0100007F:{port:04X}"
    ]


def test_mpiexec_tells_ranks_of_one_machine_where_they_meet() -> None:
    """Nothing needs to be set: the address is loopback's, and the port one that rank 0 was given by its machine."""
    with mpiexec(2) as descriptors:
        told = [
            {"PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "PMI_FD": str(descriptor)}
            for rank, descriptor in enumerate(descriptors)
        ]
        launches = [launched(variables) for variables in told]
        with ThreadPoolExecutor(2) as pool:
            stores = list(pool.map(open_store, launches))
        assert launches[0].mpiexec is not None
        launches[0].mpiexec.leave()
    stores[1].set("said", "there")
    assert stores[0].get("said") == b"there"
    assert launches[0].address == "127.0.0.1"


def test_an_mpiexec_that_does_not_answer_is_told_in_a_sentence() -> None:
    """It asks for a port to be set."""
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(ConnectionError, match=r"mpiexec does not say at which port ranks meet .* set MASTER_PORT"):
        Mpiexec(ours.detach(), GUARD).given("29500")


@pytest.mark.parametrize(
    ("given", "called"),
    [
        ("-- pytest suites -q", "suites -q --world=attached"),
        ("pytest suites --world both", "suites --world both"),
        ("pytest a.py::test_b[processes] --world attached", "a.py::test_b[attached] --world attached"),
        ("pytest a.py::test_b[threads-x]", "a.py::test_b[attached-x] --world=attached"),
    ],
)
def test_what_pytest_is_called_with(given: str, called: str) -> None:
    """The world is attached unless another is asked for, and so are tests that are named as of another world."""
    assert pytest_arguments(given.split()) == called.split()
