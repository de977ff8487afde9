"""Requirements: the decorator that marks a test as one, and finding them in source files."""
