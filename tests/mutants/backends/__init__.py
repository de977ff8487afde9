"""Mutants of backends: process groups with one defect."""
