"""kernelwright writes GPU and CPU kernels, proves them right, measures them honestly against the best rivals, and ships the winners.

    import kernelwright as kw
    run = kw.optimize("chain:softmax:1024x1024")     # the main job: searches, verifies, measures, records
    print(run.winner.candidate.source)

Names are imported when they are first used: `import kernelwright` alone costs nothing and needs neither torch nor a GPU.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.2.0"

_HOMES = {
    "Archive": "archive",
    **dict.fromkeys(("addmm", "disable", "disabled", "enable", "explain", "linear", "matmul", "use"), "runtime.api"),
    "Budget": "loop",
    "Candidate": "records",
    "LaunchPlan": "records",
    "Outcome": "records",
    "Run": "loop",
    "Trial": "records",
    "Verdict": "records",
    "Workload": "records",
    "accelerate": "runtime.models",
    "optimize": "loop",
    "resolve": "problems",
    "settings": "settings",
    "sparse": "sparse",
    "suite": "problems.suites",
    "warmup": "runtime.warmup",
}

__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]: resolved by __getattr__


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kernelwright' has no attribute {name!r}; it offers {', '.join(__all__)}")
    module = importlib.import_module(f"kernelwright.{_HOMES[name]}")
    found = module if name == "sparse" else getattr(module, name)
    if name != _HOMES[name]:  # `import kernelwright.settings` gives the module
        globals()[name] = found  # the next time it is an attribute: this way takes 2 us, twice as long as a product
    return found
