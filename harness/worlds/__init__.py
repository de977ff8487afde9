"""Worlds: where ranks live while a program runs on them."""
