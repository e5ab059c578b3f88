"""For READMEs and notebooks: code quotes, runs, drawings."""
