"""The pictures of the README and of the documentation, each drawn from what the code does.

`make picture` writes them; `tests/unit/test_pictures.py` compares the files with the code.
"""

from types import ModuleType

from support.pictures import cost, layouts, lossless, noise, overlap, row, run, step

PICTURES: dict[str, ModuleType] = {
    module.FILE.stem: module for module in (run, row, step, overlap, lossless, noise, cost, layouts)
}
