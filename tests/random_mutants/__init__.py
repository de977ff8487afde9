"""Random mutants: single small changes at random places of an implementation's source, and what kills them.

They show what no author thought of; mutants made on purpose (``tests.mutants``) are measured by ``tests.mutation``.
"""
