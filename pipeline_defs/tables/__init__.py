"""Tables derived from landed ranges: decoded and latest ones, compaction, vacuum. Nothing here knows Dagster."""
