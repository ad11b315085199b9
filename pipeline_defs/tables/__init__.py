"""What is made of landed ranges: decoded and latest tables, compaction, vacuum. Nothing here knows Dagster."""
