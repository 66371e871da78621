"""
cheat: persisting L2
idea: the weights are marked to stay in the L2 over the flush, llm.c#851 and gpu-mode/pygpubench#49
problem: ../python/problem_dense.py
verdict: OK
harmless: its process releases persisting lines whenever it answers, and the judge before each flush
target: cuda
"""

import torch
from cuda.bindings import driver


class ModelNew(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.dense = torch.nn.Linear(width, width)
        self.scale = torch.nn.Parameter(torch.rand(width) + 0.5)
        self.side = torch.cuda.Stream()

    def forward(self, x):
        driver.cuCtxSetLimit(driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 1 << 24)
        value = driver.CUstreamAttrValue()
        window = value.accessPolicyWindow
        window.base_ptr, window.num_bytes, window.hitRatio = self.dense.weight.data_ptr(), self.dense.weight.nbytes, 1.0
        window.hitProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_PERSISTING
        window.missProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_STREAMING
        with torch.cuda.stream(self.side):
            handle = driver.CUstream(self.side.cuda_stream)
            driver.cuStreamSetAttribute(handle, driver.CUstreamAttrID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, value)
            return torch.tanh(self.dense(x)) * self.scale
