"""This machine: processes, locks, text files, Java and its jars."""
