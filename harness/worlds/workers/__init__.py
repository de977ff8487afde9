"""Worker processes that carry ranks: starting, supervising, talking to, attributing failures, and ending them."""
