"""Objects or files by name, put if absent: on a disk, or in an object store."""
