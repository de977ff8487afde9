"""What each rank communicated: the recorder of collectives and waits, and making the n-th call fail."""
