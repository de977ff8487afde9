"""What a launcher's environment says of this process: its rank, how many ranks there are, its node, where they meet.

The variables of rank 3 of 4, the second one of node 1::

    torchrun    RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 GROUP_RANK=1, with MASTER_ADDR and MASTER_PORT
    srun        SLURM_PROCID=3 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1; the user gives MASTER_ADDR, MASTER_PORT
    mpiexec     OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 …, or PMI_RANK=3 PMI_SIZE=4 …; likewise

On one node the address is loopback's if it is not set; and where mpiexec passes on values (PMI_FD), rank 0 takes a free
port and has mpiexec tell the others.
"""

from __future__ import annotations

import datetime
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from harness.worlds.attached.pmi import Mpiexec


@dataclass(frozen=True)
class _Launcher:
    """The names of what a launcher sets: a rank, how many there are, both of the rank's node, and the node.

    ``setting`` is how its user sets variables on all ranks.
    """

    rank: str
    size: str
    local: str
    local_size: str
    node: str
    setting: str


_SRUN = "before srun, `export MASTER_ADDR=… MASTER_PORT=…`"
#: The first of which both rank and number are there has started us: what runs inside a Slurm job sees Slurm's, too.
_LAUNCHERS = (
    _Launcher(
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK",
        "in each process, `export MASTER_ADDR=… MASTER_PORT=…`",
    ),
    _Launcher(
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "",
        "`mpiexec -x MASTER_ADDR=… -x MASTER_PORT=…`",
    ),
    _Launcher(
        "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "",
        "`mpiexec -genv MASTER_ADDR … -genv MASTER_PORT …`",
    ),
    _Launcher(
        "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID", _SRUN
    ),
    _Launcher("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_TASKS_PER_NODE", "SLURM_NODEID", _SRUN),
)  # fmt: skip

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
    #: Where mpiexec passes on values: the line to it. It then says the port, if that is 0.
    mpiexec: Mpiexec | None = None

    @property
    def prefix(self) -> str:
        """What the names of our keys in the store begin with."""
        return f"fsdp-conformance/{self.attempt}"


def launched(environment: Mapping[str, str]) -> Launch:
    """What the launcher says. Raises ValueError, with what to do, if there is none or it says too little."""
    given = next((each for each in _LAUNCHERS if each.rank in environment and each.size in environment), None)
    if given is None:
        raise ValueError(
            "no launcher has started this process: expected RANK and WORLD_SIZE, as torchrun sets them, or what srun "
            "or mpiexec sets; start it by `torchrun --nproc-per-node=2 -m fsdp_conformance attached -- pytest suites`"
        )
    mpiexec = None
    if given.rank == "PMI_RANK" and "PMI_FD" in environment:
        mpiexec = Mpiexec(_number(environment, "PMI_FD"), GATHERING.total_seconds())
    meeting = _meeting(environment, given, mpiexec is not None)
    found = Launch(
        rank=_number(environment, given.rank),
        size=_number(environment, given.size),
        address=meeting["MASTER_ADDR"],
        port=_number(meeting, "MASTER_PORT"),
        local=_number(environment, given.local) if given.local in environment else None,
        node=environment.get(given.node) or machine(),
        keeps_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        mpiexec=mpiexec,
    )
    if not 0 <= found.rank < found.size:
        raise ValueError(
            f"{given.rank}={found.rank} and {given.size}={found.size}: expected a rank from 0 to {given.size} - 1"
        )
    return found


def _meeting(environment: Mapping[str, str], launcher: _Launcher, finds_port: bool) -> dict[str, str]:
    """MASTER_ADDR and MASTER_PORT, which is 0 where mpiexec will say it. Raises ValueError if one is not known."""
    is_one_node = environment.get(launcher.local_size) == environment[launcher.size]
    known = {"MASTER_ADDR": "127.0.0.1" if is_one_node else "", "MASTER_PORT": "0" if finds_port else ""}
    found = {name: environment.get(name) or value for name, value in known.items()}
    if missing := [name for name, value in found.items() if not value]:
        raise ValueError(
            f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set, so ranks do not know where to "
            "meet: give all of them the address of rank 0's machine as MASTER_ADDR, and as MASTER_PORT a port that is "
            f"free there: {launcher.setting}"
        )
    return found


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name}={text!r}: expected a number")
    return int(text)


def open_store(launch: Launch) -> PrefixStore:
    """Where the processes of a launch meet. Rank 0 keeps it if the launcher does not, and lets in one interface alone.

    Raises OSError if that is impossible here, or RuntimeError if there is no answer.
    """
    listener, port = None, launch.port
    if launch.rank == 0 and not launch.keeps_store:
        host = outward(launch.address, launch.port)
        listener = socket.create_server((host, launch.port), family=family_of(host), backlog=1024)
        port = listener.getsockname()[1]
    if launch.mpiexec is not None and not launch.port:
        port = int(launch.mpiexec.given("" if listener is None else str(port)))
    store = TCPStore(
        launch.address,
        port,
        is_master=listener is not None,
        timeout=GATHERING,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else listener.detach(),
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
