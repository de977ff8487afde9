"""What a launcher's environment says of this process: its rank, how many ranks there are, its node, where they meet.

The variables of rank 3 of 4, the second one of node 1::

    torchrun    RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 GROUP_RANK=1, with MASTER_ADDR and MASTER_PORT
    srun        SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1; the user gives MASTER_ADDR, MASTER_PORT
    mpiexec     OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 …, or PMI_RANK=3 PMI_SIZE=4 …; likewise
"""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

#: By launcher: the variables with the rank, the number of ranks, the rank among those of its node, and the node. The
#: first of whom both rank and number are there has started us: what runs inside a Slurm job sees Slurm's, too.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", ""),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", ""),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_NODEID"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID"),
)

#: How long ranks wait for each other at the start: a scheduler may start them minutes apart.
GATHERING = datetime.timedelta(minutes=5)


@dataclass(frozen=True)
class Launch:
    """One process of a launch.

    ``local`` is its rank among those of its node, None where the launcher does not tell; ``node`` is the launcher's
    name for the node, and the machine's where it has none.
    """

    rank: int
    size: int
    address: str
    port: int
    local: int | None
    node: str
    #: Whether the launcher keeps the store at that address itself; else rank 0 does.
    keeps_store: bool
    #: Which of several attempts to start these ranks it is.
    attempt: str

    @property
    def prefix(self) -> str:
        """What the names of our keys in the store begin with."""
        return f"fsdp-conformance/{self.attempt}"


def launched(environment: Mapping[str, str]) -> Launch:
    """What the launcher says. Raises ValueError, with what to do, if there is none or it says too little."""
    named = next((names for names in _LAUNCHERS if names[0] in environment and names[1] in environment), None)
    if named is None:
        raise ValueError(
            "no launcher has started this process: expected RANK and WORLD_SIZE, as torchrun sets them, or what srun "
            "or mpiexec sets; start it by `torchrun --nproc-per-node=2 -m harness.attached -- pytest suites`"
        )
    rank, size, local, node = named
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if not address or not port:
        raise ValueError(
            "MASTER_ADDR and MASTER_PORT are not set, so ranks do not know where to meet: give the address of rank 0's "
            "machine, and a port that is free there"
        )
    found = Launch(
        rank=_number(environment, rank),
        size=_number(environment, size),
        address=address,
        port=_number(environment, "MASTER_PORT"),
        local=_number(environment, local) if local in environment else None,
        node=environment.get(node) or machine(),
        keeps_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
    )
    if not 0 <= found.rank < found.size:
        raise ValueError(f"{rank}={found.rank} and {size}={found.size}: expected a rank from 0 to {size} - 1")
    return found


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name}={text!r}: expected a number")
    return int(text)


def open_store(launch: Launch) -> Store:
    """Where the processes of a launch meet. Rank 0 keeps it if the launcher does not, and lets in one interface alone.

    Raises OSError if that is impossible here, or RuntimeError if there is no answer.
    """
    listener = None
    if launch.rank == 0 and not launch.keeps_store:
        host = outward(launch.address, launch.port)
        listener = socket.create_server((host, launch.port), family=family_of(host), backlog=1024).detach()
    store = TCPStore(
        launch.address,
        launch.port,
        is_master=listener is not None,
        timeout=GATHERING,
        wait_for_workers=False,
        master_listen_fd=listener,
    )
    return PrefixStore(launch.prefix, store)


def store_of_world(address: str, port: int, prefix: str) -> Store:
    """On a rank: where the ranks of one world, in one run, meet."""
    store = TCPStore(address, port, is_master=False, timeout=GATHERING, wait_for_workers=False)
    return PrefixStore(prefix, store)


def outward(address: str, port: int) -> str:
    """The address of this machine's interface from which ``address`` is reached."""
    family, _, _, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing
        return str(probe.getsockname()[0])


def family_of(host: str) -> socket.AddressFamily:
    """IPv6 for an address with colons."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def machine() -> str:
    """Equal for processes that have one loopback interface: the same boot of the same kernel, and network namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/net')}"
    except OSError:
        return socket.gethostname()
