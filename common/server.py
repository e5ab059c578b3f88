"""`python -m common.server`: a stand-alone TensorFlow server, for sessions of other programs."""

from common.launch.server import main

if __name__ == "__main__":
    main()
