# pandas has no usable types: pyright takes what comes from it as Any.
from typing import Any

def __getattr__(name: str) -> Any: ...
