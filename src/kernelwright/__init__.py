"""kernelwright writes GPU and CPU kernels, proves them right, measures them honestly against the best rivals, and ships the winners."""

__version__ = "0.1.0"
