"""Model state dicts: what they hold, whose memory it is, and what loading does."""
