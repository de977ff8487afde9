"""Ranks that are attached to the process of the tests, as a launcher would have started them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

from torch._C._distributed_c10d import TCPStore

from harness.worlds.attached import fleet as attached_fleet
from harness.worlds.attached.fleet import Fleet
from harness.worlds.attached.launch import launched, open_store
from harness.worlds.workers import supervised_world
from tests import ROOT as ROOT
from tests.patience import GUARD

#: What no launcher has told this process may reach those that it starts.
_TOLD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "SLURM_", "OMPI_", "PMI_", "MASTER_", "TORCHELASTIC_")


def told(**variables: object) -> dict[str, str]:
    """This environment, with what a launcher says in place of what another one may have said."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_TOLD)}
    return {**kept, "PYTHONPATH": str(ROOT), **{name: str(value) for name, value in variables.items()}}


def slurm(rank: int, size: int) -> dict[str, object]:
    """What ``srun`` tells a task that is alone on its node."""
    return {"SLURM_PROCID": rank, "SLURM_NTASKS": size, "SLURM_LOCALID": 0, "SLURM_NODEID": rank}


@contextmanager
def attached(size: int) -> Iterator[tuple[Fleet, list[subprocess.Popen[str]]]]:
    """This process as the controller of ``size`` ranks, and the agents of the others; none of them is left behind."""
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    agents = [_agent(kept.port, slurm(rank, size)) for rank in range(1, size)]
    launch = launched(told(**slurm(0, size), **_meeting(kept.port), TORCHELASTIC_USE_AGENT_STORE=True))
    before = attached_fleet.known()
    try:
        fleet = attached_fleet.gather(launch, open_store(launch), seconds=GUARD)
        attached_fleet.use(fleet)
        yield fleet, agents
        supervised_world.shutdown_pool()
        fleet.close()
        assert all(agent.wait(GUARD) == 0 or fleet.lost() for agent in agents)
    finally:
        attached_fleet.use(before)
        for agent in agents:
            with agent:
                agent.kill()


def _meeting(port: int) -> dict[str, object]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def _agent(port: int, variables: Mapping[str, object]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fsdp_conformance", "attached", "--", "pytest"]
    environment = told(**variables, **_meeting(port))
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)


@contextmanager
def torchruns(nodes: int, *args: str) -> Iterator[list[subprocess.Popen[str]]]:
    """One torchrun for each node, with a rank each; they meet in a store of ours, so that no port is guessed."""
    kept = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{kept.port}", "--rdzv-conf=is_host=false"]
    command = [sys.executable, "-m", "torch.distributed.run", f"--nnodes={nodes}", "--nproc-per-node=1", *meeting]
    command += ["-m", "fsdp_conformance", "attached", "--", "pytest", "-q", "-p", "no:cacheprovider", *args]
    started = [
        subprocess.Popen(
            command, cwd=ROOT, env=told(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )
        for _ in range(nodes)
    ]  # fmt: skip
    try:
        yield started
    finally:
        for one in started:
            with one:
                one.kill()


def knock(port: int, says: bytes) -> bytes:
    """Connect as a stranger, say something, and hear what comes until the other side hangs up."""
    heard = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=GUARD) as stranger, suppress(OSError):
        stranger.sendall(says)
        while said := stranger.recv(4096):
            heard += said
    return bytes(heard)


@contextmanager
def mpiexec(size: int) -> Iterator[list[int]]:
    """What stands for mpiexec: descriptors of lines to it, one for each rank, which close them."""
    kept: dict[str, str] = {}
    together = threading.Barrier(size)

    def serve(line: socket.socket) -> None:
        with line, line.makefile("rw") as file:
            for text in file:
                asked = dict(word.split("=", 1) for word in text.split())
                if asked["cmd"] == "put":
                    kept[asked["key"]] = asked["value"]
                elif asked["cmd"] == "barrier_in":
                    together.wait(GUARD)
                file.write(f"cmd=answer rc=0 kvsname=values value={kept.get(asked.get('key', ''), '')}\n")
                file.flush()

    pairs = [socket.socketpair() for _ in range(size)]
    with ThreadPoolExecutor(size) as pool:
        served = [pool.submit(serve, theirs) for _, theirs in pairs]
        yield [ours.detach() for ours, _ in pairs]
    assert all(each.exception() is None for each in served)
