"""A static results site from many runs: a matrix of subjects and chapters, the history of each, pages, and badges."""
