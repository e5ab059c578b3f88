"""TensorFlow's graph: what an operation waits for, where it runs, clocks and queues inside it."""
