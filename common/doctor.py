"""`python -m common.doctor`: what is wrong with this machine, and the cure."""

import sys

from common.launch.doctor import main

if __name__ == "__main__":
    sys.exit(main())
