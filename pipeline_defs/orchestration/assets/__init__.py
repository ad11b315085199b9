"""A topic's assets and checks, and what its defs.yaml says of them."""
