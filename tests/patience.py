"""How long tests wait for what must come: only what hangs takes longer, however slow the machine is."""

#: In seconds: ten minutes.
GUARD = 600.0
