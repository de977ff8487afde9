"""Programs that ranks run in the tests of worlds: well-behaved and misbehaving ones."""
