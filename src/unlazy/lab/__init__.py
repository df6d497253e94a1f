"""The laboratory: runs experiments over their grids, stores every finished trial, goes on where it stopped."""

from unlazy.lab.catalogue import all_experiments, find, own_experiments
from unlazy.lab.engines import open_engine
from unlazy.lab.run import Interrupted, load, run
from unlazy.lab.store import Store

__all__ = ["Interrupted", "Store", "all_experiments", "find", "load", "open_engine", "own_experiments", "run"]
