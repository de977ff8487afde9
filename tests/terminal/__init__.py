"""What a run prints, on a terminal and into a log."""
