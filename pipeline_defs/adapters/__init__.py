"""Impure: one foreign system per file. Nothing here knows landing, Dagster or settings."""
