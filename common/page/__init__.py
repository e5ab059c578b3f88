"""Pages that move: "Who waits?", which simulates runs, and the page of a run that has happened."""
