"""The process world: one rank a process on the backend's real process group, and what its flight recorder shows."""
