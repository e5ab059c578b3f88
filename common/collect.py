"""`python -m common.collect FOLDER...`: builds the summary, curves and table from a run's parts."""

from common.launch.collect import main

if __name__ == "__main__":
    main()
