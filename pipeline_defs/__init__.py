"""Offsetlake: lands Kafka offset ranges as Parquet files. `core` decides, `adapters` touch the world."""

import gc
import multiprocessing

# a run's process has loaded all of Dagster when it imports this; searching that for garbage again and again during the other
# imports would be a fifth of what a small run costs. Only there: such a process ends without a last collection, in which
# C++ modules would report frozen objects as leaks
if multiprocessing.parent_process() is not None:
    gc.freeze()
