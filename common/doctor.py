"""`python -m common.doctor`: checks this machine and says how to fix any problem."""

import sys

from common.launch.doctor import main

if __name__ == "__main__":
    sys.exit(main())
