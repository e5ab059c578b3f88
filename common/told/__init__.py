"""What a task was told: its command line, its example's defaults, `TF_CONFIG`; and checks."""
