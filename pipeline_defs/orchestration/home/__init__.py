"""Dagster's home and its processes: which daemon works, which runs have died, how `up` starts it all."""
