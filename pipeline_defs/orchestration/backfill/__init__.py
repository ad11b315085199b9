"""Ranges that a person chooses, and the backfill that lands or decodes them."""
