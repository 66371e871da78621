"""The main job from Python: a faster softmax for this machine, and what it cost to find.

python examples/optimize_a_chain.py
"""

import kernelwright as kw


def main() -> None:
    run = kw.optimize("chain:softmax:256x1024", budget=kw.Budget(trials=16, seconds=30))
    if run.winner is None:
        print("no kernel passed; the verdicts are in the archive:", kw.settings().archive)
        return
    for c in run.winner.comparisons:
        print(f"{c.mode:<13} {c.ratio:5.2f}x {c.rival:<12} [{c.low:.2f}, {c.high:.2f}]  {c.outcome}")
    print(f"{len(run.trials)} trials in {run.seconds:.0f} s; the kernel:")
    print(run.winner.candidate.source[-1500:])


if __name__ == "__main__":
    main()
