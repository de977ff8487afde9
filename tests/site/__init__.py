"""The results site: what is on its pages, where they are, and what is refused."""
