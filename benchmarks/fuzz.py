"""Malformed input of every kind that kernelwright reads: no traceback, no hang, one clear sentence, no lost Trial.

    python benchmarks/fuzz.py [--inputs 100000] [--seed 0] [--area "command line"] [--out results/fuzz]

A loop of mutations guided by the coverage of kernelwright's own lines (`sys.settrace`): an input that runs a line no other ran is kept and
mutated further. JSON is mutated as a tree, everything else as bytes with the words of its area. The same seed gives the same inputs. What
the command line's verbs would start in earnest (a judge, a compiler) is stubbed; what decides whether to start it is not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

import torch
from fuzzing import folders, texts
from fuzzing.engine import Area, Fuzzer, prepared
from fuzzing.made import made
from published import command_line


def areas(folder: Path) -> list[Area]:
    """All of them; files are written in `folder`."""
    sound = made(folder)
    return [
        texts.records(folder, sound),
        texts.plans(sound),
        texts.candidates(folder, sound),
        texts.problem_texts(),
        texts.problem_files(folder),
        folders.manifests(folder, sound),
        folders.pack_files(folder, sound),
        folders.archives(folder, sound),
        folders.imports(folder, sound),
        folders.environments(folder),
        folders.command_line(folder, sound),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--area", action="append", help="only this one; may be given several times")
    parser.add_argument("--out", type=Path, default=None, help="folder of summary.json")
    a = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", SyntaxWarning)
    started = time.monotonic()
    with prepared() as folder:
        every = {x.name: x for x in areas(folder)}
        if unknown := set(a.area or ()) - set(every):
            parser.error(f"there is no area {', '.join(sorted(unknown))}; choose of {', '.join(every)}")
        chosen = [x for x in every.values() if not a.area or x.name in a.area]
        fuzzer = Fuzzer(chosen, a.seed)
        fuzzer.fuzz(a.inputs, lambda text: print(text, flush=True))
    faults = sorted(fuzzer.faults.values(), key=lambda f: -f.count)
    for f in faults:
        print(f"FAULT {f.count} x {f.area}, {f.kind} at {f.place}: {f.text}\n      {f.input}")
    summary = {
        "command": command_line("fuzz.py"),
        "engine": "mutations guided by line coverage (sys.settrace)",
        "seed": a.seed,
        "python": sys.version.split()[0],
        "inputs": sum(x.inputs for x in chosen),
        "refused": sum(x.refused for x in chosen),
        "lines_covered": len(fuzzer.coverage.seen),
        "areas": {x.name: {"inputs": x.inputs, "refused": x.refused, "kept": len(x.corpus), "new_lines": x.lines} for x in chosen},
        "faults": [vars(f) for f in faults],
        "seconds": round(time.monotonic() - started, 1),
    }
    if a.out is not None:
        a.out.mkdir(parents=True, exist_ok=True)
        (a.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(f"{summary['inputs']} inputs, {len(faults)} faults, {summary['seconds']:.0f} s")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
