"""Commands of a project and its processes."""
