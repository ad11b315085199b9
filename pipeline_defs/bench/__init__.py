"""The benchmark: this project beside what people use instead, on the same topic, in one run.

Imports the package, never the other way round.
"""
