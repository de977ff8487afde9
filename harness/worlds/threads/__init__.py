"""The thread world: n ranks in one process, in lockstep, on a process group of our own."""
