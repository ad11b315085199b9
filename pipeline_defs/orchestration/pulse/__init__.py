"""The one sensor, its tick of each topic, and the run that it asks for."""
