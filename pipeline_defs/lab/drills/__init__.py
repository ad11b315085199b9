"""Fault drills: what a fault does to rows, here and in two systems that people use instead, measured."""
