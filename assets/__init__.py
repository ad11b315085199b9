"""What exists: one folder per topic, each with a defs.yaml. How it works is in pipeline_defs."""
