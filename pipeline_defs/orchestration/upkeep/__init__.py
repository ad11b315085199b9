"""Nightly and hourly work: compaction, sweeping, pruning, retirement of keys."""
