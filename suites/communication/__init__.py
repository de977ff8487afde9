"""What is communicated and when: collectives, prefetching, and overlap with computation."""
