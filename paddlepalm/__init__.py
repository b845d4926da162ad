"""PaddlePALM's own name: programs of 2.x that import `paddlepalm` get `palm.compat`."""

import sys

import palm.compat  # noqa: F401 - its modules are read below

# The same modules under both names: a second copy would have other classes.
for _name, _module in list(sys.modules.items()):
    if f"{_name}.".startswith("palm.compat."):
        sys.modules[f"paddlepalm{_name.removeprefix('palm.compat')}"] = _module
