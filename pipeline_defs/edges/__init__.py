"""Impure: one foreign system per file."""
