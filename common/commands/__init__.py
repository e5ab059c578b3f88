"""The commands, each `python -m common.commands.NAME`."""
