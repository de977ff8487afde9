"""The project's own tests."""

from pathlib import Path

#: The checkout.
ROOT = Path(__file__).resolve().parent.parent
