"""The lake: objects or files by name, put if absent, and the Parquet files in them."""
