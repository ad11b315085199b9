"""How Dagster runs it: assets, checks, the one sensor and its run, backfills, upkeep."""
