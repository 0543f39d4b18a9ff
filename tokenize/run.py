"""The script for `ray submit ray_cluster.yaml tokenize/run.py -- --input … --output … --tokenizer …`.

`ray submit` copies this one file to the head and runs it there, so it imports only the installed package. Flags are
those of `taojin tokenize`; without --address the cluster of the machine it runs on is meant.
"""

import os
import sys

from taojin.cli import main

if __name__ == "__main__":
    os.environ.setdefault("RAY_ADDRESS", "auto")
    sys.exit(main(["tokenize", *sys.argv[1:]]))
