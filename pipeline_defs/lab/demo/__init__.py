"""What only the demo needs: its data set and a Dagster of its own."""
