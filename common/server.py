"""`python -m common.server`: a TensorFlow server on its own, for sessions of other programs."""

from common.launch.server import main

if __name__ == "__main__":
    main()
