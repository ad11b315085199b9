"""The benchmark: this project beside what people use instead, on the same topic, in one run.

Imports the package, never the other way round.
"""

ENGINE, DERIVED, TOPICS, PULSE = "engine", "derived", "topics", "pulse"  # parts that can be measured alone
