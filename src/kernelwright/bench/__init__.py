"""Answers of others, and of models, judged under one protocol: KernelBench, our own suites, CUDAHercules.

tasks      what is asked: a level of a KernelBench checkout, a suite, the tasks of CUDAHercules
answers    what is answered: files, folders, KernelBench run folders, CUDA-L1's released lines
run        one task after the other in a worker process under a watchdog; every result is on disk before the next begins
messages   what the run and its worker say to each other
operators  which operators of PyTorch an answer executes: own kernels, other operators, or framework flags alone
scores     fast_p, geometric means, wins, ties and losses, pass@k: pure functions of rows
claims     published speed-ups beside ours, and why they differ
models     answers written by a model: pass@k, self-refine, tool-augmented
"""
