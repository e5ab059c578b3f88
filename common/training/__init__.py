"""Behind `session`: hooks, recovery, synchronous rounds, what a task writes."""
