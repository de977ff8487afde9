"""Random mutants: single small changes at random places of an implementation's source, and what kills them.

They show what nobody thought of; the mutants of ``tests.mutants``, made on purpose, are measured by ``tests.mutation``.
"""
