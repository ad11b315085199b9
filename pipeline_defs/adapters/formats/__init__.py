"""Decoding in Spark, a file or two for each format."""
