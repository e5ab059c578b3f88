"""`python -m common.collect FOLDER...`: makes summary, curves and table from the parts of a run."""

from common.launch.collect import main

if __name__ == "__main__":
    main()
