"""Behind `session`: hooks, recovery, synchronous rounds, and the files that a task writes."""
