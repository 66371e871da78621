"""
cheat: threads
idea: a thread copies what the rival writes into the shared buffers, and forward hands that out
problem: problem_dense.py
verdict: WRONG_RESULT|CRASH
target: cpu|cuda
"""

import gc
import threading
import time

import torch


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)

        self.stolen = torch.zeros(128, 512)
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        shared = [t for t in gc.get_objects() if isinstance(t, torch.Tensor) and t.shape == (128, 512)]
        while True:
            for one in shared:
                if bool(one.isfinite().all()):
                    self.stolen.copy_(one)
            time.sleep(0.0001)

    def forward(self, x):
        return self.stolen
