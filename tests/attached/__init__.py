"""Tests of the attached world."""
