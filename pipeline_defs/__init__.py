"""How Kafka offset ranges are landed. `core` decides, `adapters` touch the world."""

import gc
import multiprocessing

# a run's process has loaded all of Dagster when it loads this; to search that for garbage again and again while the rest is
# loaded would be a fifth of what a small run costs. Only there: it ends without a last collection, at which modules written in
# C++ would call what they find frozen a leak
if multiprocessing.parent_process() is not None:
    gc.freeze()
