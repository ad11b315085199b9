"""Commands that show how things are."""
