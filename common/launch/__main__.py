"""`python -m common.launch FOLDER [flags]`"""

import sys

from common.launch.launcher import main

sys.exit(main(sys.argv[1:]))
