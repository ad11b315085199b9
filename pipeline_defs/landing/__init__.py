"""Kafka to `data/`: plan, read, stage, verify, commit, publish. `landing.py` is the protocol; nothing here knows Dagster."""
