"""Tests with models of transformers. Ranks import the modules of this folder by name."""

import os
import sys
from pathlib import Path

FOLDER = str(Path(__file__).resolve().parent)

sys.path.insert(0, FOLDER)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (FOLDER, os.environ.get("PYTHONPATH"))))
