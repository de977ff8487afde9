"""Gradients between backward and step: accumulation, clipping, scaling, and how they are reduced."""
