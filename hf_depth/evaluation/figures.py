"""matplotlib for pictures in files, which need no backend."""

import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> "Figure":
    """An empty `matplotlib.figure.Figure` of this size in inches, which belongs to no window."""
    import_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def import_matplotlib() -> None:
    """
    Import matplotlib, whatever backend `MPLBACKEND` names.

    Jupyter sets the variable, to its own backend, for all that is started from a notebook. Where the environment of a
    script lacks that backend, `import matplotlib` is an error, which must not end a run at its first picture.
    """
    if "matplotlib" in sys.modules:
        return
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        import matplotlib
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    if backend:
        with suppress(ValueError):
            matplotlib.rcParams["backend"] = backend
