"""Behind `run.sh`: starts all tasks on this machine and shows how they get on."""
