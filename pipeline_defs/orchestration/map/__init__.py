"""The picture of a topic's coverage: one HTML file without network, and a few lines of text."""
