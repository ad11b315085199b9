"""Decoding in Spark: which format decodes what, those of a user's own included."""
