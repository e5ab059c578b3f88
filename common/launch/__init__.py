"""Behind `run.sh`: starts all tasks on this machine and shows their progress."""
