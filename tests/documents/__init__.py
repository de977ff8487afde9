"""Tests that documents and examples are true."""
