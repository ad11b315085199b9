"""Commands that work on a topic: produce, plan, land, decode, read, compact."""
