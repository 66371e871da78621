"""docs/cheats.md from the headers of the corpus: `python tests/cheats/page.py > docs/cheats.md`."""

from __future__ import annotations

from pathlib import Path

from kernelwright.evaluate.corpus import header

HERE = Path(__file__).parent
CATCHES = {
    "batching": "after some of a sample's launches the outputs of the others' buffers must still hold the poison",
    "benchmark-mode detection": "the outputs of every timed round are checked, on inputs drawn for it",
    "cached result": "no timed launch meets inputs that an earlier one has met, or nearly those; rung `repeat`: right after one column has "
    "changed",
    "clock and power games": "the sandbox; the judge's own clock of the processor time used",
    "constant output": "tolerances are relative to each output's own size",
    "crash": "the device lives in the judge's process, which is started afresh",
    "dependent launch": "rung `chain`: behind a kernel that writes its inputs late",
    "early exit": "results leave by a pipe of the judge's alone",
    "fast math": "rung `adversarial`: one NaN, one infinity, denormals",
    "hang": "the judge's watchdog",
    "harm": "the sandbox: no fork, no exec, no signals to others; the judge is started afresh",
    "identity": "every rung",
    "input mutation": "inputs are compared with the judge's own copy, in timed rounds too; the sandbox",
    "lazy tensor": "results are copied out by the judge, not by the tensor",
    "library": "device code has no host code: there is nothing to call",
    "low-rank short-cut": "random inputs of full rank",
    "memory": "limits of the process and of the compiler; device code has no heap",
    "network": "the sandbox: no sockets",
    "out of bounds": "guard bands of NaN around every buffer, checked in timed rounds too; on a CPU pages that cannot be read",
    "overfitting": "rungs `exact`, `normal` and `shapes`: tails, shapes drawn at random, padded rows, pointers off alignment",
    "partial write": "every output is poisoned before and looked at for poison after each run; each element has its own tolerance",
    "persistence": "the sandbox: read-only system, private /tmp, removed afterwards",
    "persisting L2": "persisting lines are reset before each sample",
    "poison detection": "rung `repeat`: the same bits over poison, over other results and over zeros",
    "precision downgrade": "rung `exact`: sums that half precision cannot hold, operands of many bits; the vendor's own error",
    "race": "rung `repeat`; if it is right every time racecheck, as in `pack verify`",
    "reading the harness": "the compiler is confined, its words about files that are no headers are not passed on; random numbers are "
    "seeded after the fork",
    "shared translation unit": "a candidate is a translation unit of its own",
    "side streams": "a plan is data; device code that launches does not compile",
    "skipped tail": "rung `shapes`",
    "stale workspace": "inputs change from run to run, the workspace does not; its guards and its promise of zeros are checked",
    "statistics patched": "statistics are the judge's",
    "stdout forged": "results leave by a pipe of the judge's alone; device code has no printf",
    "the grader's memory": "references are computed after the run; inputs are altered before each turn, so there is no answer to them yet; "
    "the sandbox",
    "threads": "outputs are taken at once when the call ends; processor time of all threads is counted",
    "timer forged": "claims are held against the processor time that the judge sees",
    "timer patched": "claims are held against the processor time that the judge sees",
    "try and fall back": "there is no fall-back",
    "work outside the clock": "processor time outside the clock is counted; inputs are not there yet",
}


def page() -> str:
    kinds: dict[str, list[tuple[str, dict[str, str]]]] = {}
    for path in sorted(p for p in HERE.rglob("*") if p.suffix in (".cu", ".cpp", ".py") and p.parent != HERE):
        if "cheat" in (said := header(path)):
            kinds.setdefault(said["cheat"], []).append((str(path.relative_to(HERE)), said))
    total = sum(map(len, kinds.values()))
    lines = [
        "# Known cheats",
        "",
        f"{total} of them in {len(kinds)} kinds, one file each under `tests/cheats/`: CUDA device code, C++ on the CPU, Python answers to",
        "KernelBench files. `kernelwright audit` runs those of a target, then honest kernels. Where one is let through it gains nothing,",
        "and its line says why. [What is not protected against](threat-model.md#what-is-not-protected-against).",
        "",
        "Made by `python tests/cheats/page.py > docs/cheats.md` from the files themselves.",
    ]
    for kind, ones in sorted(kinds.items()):
        lines += [
            "",
            f"## {kind[0].upper()}{kind[1:]}",
            "",
            f"Caught by: {CATCHES[kind]}.",
            "",
            "| file | idea | verdict |",
            "|---|---|---|",
        ]
        for name, said in ones:
            verdict = said["verdict"].replace("|", " or ")
            idea = said["idea"] + (f". Harmless: {said['harmless']}" if "harmless" in said else "")
            lines.append(f"| `{name}` | {idea} | {verdict} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
