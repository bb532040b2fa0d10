"""First in the path of the processes that most tests of sweeps start: neuralop_mup without its ``__init__``.

That brings torch, which takes each process two seconds and does nothing in trials that return a number. Sweeps whose
workers start as a user's do are in test_workers_give_the_same_results_in_the_same_order_as_one_process and test_batched.py.
"""

import importlib.util
import sys
import types

_found = importlib.util.find_spec("neuralop_mup")
if _found is not None:
    _package = types.ModuleType("neuralop_mup")
    _package.__path__ = list(_found.submodule_search_locations)
    sys.modules.setdefault("neuralop_mup", _package)
