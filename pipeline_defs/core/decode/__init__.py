"""Formats and schemas of keys and values, and the columns that they give."""
