"""For READMEs and notebooks: quotes of the code, runs, drawings."""
