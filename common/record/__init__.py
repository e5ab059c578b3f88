"""The ground floor: what a run writes and how it is read, without TensorFlow."""
