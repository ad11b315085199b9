"""How long records wait under a Dagster that is up, and what a long history costs."""
