"""What the operating system knows of a rank's process: files, descendants, signals and limits."""
