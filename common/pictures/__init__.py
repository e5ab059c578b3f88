"""What a run looks like: curves, timeline, palette."""
