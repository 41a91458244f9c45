"""The pictures that `make picture` draws from the code: the run and the ablation of the README,
the cost model.

The other pictures of the documentation are files. `tests/unit/test_pictures.py` looks at all.
"""

from types import ModuleType

from support.pictures import ablation, cost, run

PICTURES: dict[str, ModuleType] = {module.FILE.stem: module for module in (run, cost, ablation)}
