"""One MPI world of ranks that no mpiexec has started: what MPI asks a launcher for (PMI-1), torch's store answers."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from itertools import count
from typing import Any

import mpi4py

mpi4py.rc.initialize = False  # not when it is imported, but with the first group, which has all ranks
ANSWERS = {
    "init": "response_to_init pmi_version=1 pmi_subversion=1 rc=0",
    "get_maxes": "maxes kvsname_max=64 keylen_max=64 vallen_max=1024",
    "get_appnum": "appnum appnum=0 rc=0",
    "put": "put_result rc=0",
    "barrier_in": "barrier_out rc=0",
    "finalize": "finalize_ack rc=0",
}


def world(options: Any) -> Any:
    """MPI's communicator of all ranks."""
    from mpi4py import MPI

    if not MPI.Is_initialized():
        line, theirs = socket.socketpair()
        rank, size = options.group_rank, options.group_size
        os.environ.update(PMI_FD=str(theirs.detach()), PMI_RANK=str(rank), PMI_SIZE=str(size))
        if rank == 0:
            options.store.set("PMI_process_mapping", f"(vector,(0,1,{size}))")  # one node
            options.store.set("world", f"world-{os.getpid()}")  # last: others wait for it; names shared memory
        threading.Thread(target=_answer, args=(line, options.store, size), daemon=True).start()
        start = ctypes.CDLL("libmpi.so.12").MPI_Init_thread  # mpi4py's would keep the answering thread from running
        start(None, None, MPI.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
    return MPI.COMM_WORLD


def _answer(line: socket.socket, store: Any, size: int) -> None:
    answers = {**ANSWERS, "get_my_kvsname": f"my_kvsname kvsname={store.get('world').decode()} rc=0"}
    barriers = count()
    for words in line.makefile():
        asked = dict(word.split("=", 1) for word in words.split())
        cmd, key = asked["cmd"], asked.get("key", "")
        if cmd == "put":
            store.set(key, asked["value"])
        elif cmd == "barrier_in":
            key = f"barrier {next(barriers)}"
            store.add(key, 1)
            while store.add(key, 0) < size:
                time.sleep(0.001)
        found = f"get_result rc=0 value={store.get(key).decode()}" if cmd == "get" and store.check([key]) else ""
        line.sendall(f"cmd={found or answers.get(cmd, 'get_result rc=-1')}\n".encode())
