"""Waivers: reading them, matching them to results, checking and suggesting them."""
