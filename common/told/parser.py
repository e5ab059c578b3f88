"""The parser of every command line here: a mistake is one clear sentence, with exit code 2."""

import argparse
import re
import sys

from common import fail


class Parser(argparse.ArgumentParser):
    """Attributes: `given`, the flags of the last command line; `unused`, the flags that the example
    refuses, both with their dashes; `downloads`: what `--data_url` may replace."""

    given: frozenset[str] = frozenset()
    unused: frozenset[str] = frozenset()
    downloads: frozenset[str] = frozenset()

    def parse_args(self, args=None, namespace=None):
        """Also stores in `given` which flags were given."""
        words = sys.argv[1:] if args is None else args
        self.given = frozenset(w.partition("=")[0] for w in words if w.startswith("--"))
        return super().parse_args(args, namespace)

    def error(self, message):
        message = re.sub(r"^unrecognized arguments: ", "unknown argument ", message)
        fail(re.sub(r"^argument (--\w+).*?: ", r"\1: ", message) + " (--help lists all flags)")
