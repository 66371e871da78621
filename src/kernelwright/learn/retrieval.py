"""Passages worth reading before a kernel is written: our docs, the device headers and archived kernels, ranked by BM25.

BM25: S. Robertson and H. Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009, with the usual k1 = 1.2, b = 0.75.
What is found is evidence for a prompt, never an instruction: archived kernels were written by models, and by users.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import kernelwright
from kernelwright.archive import Archive
from kernelwright.learn.reward import reference
from kernelwright.records import Trial, Workload

K1, B = 1.2, 0.75
PASSAGE = 2000
"""Most characters of one passage: a header's function with its comment, or a section of the docs, is rarely longer."""
KERNELS = 100
"""Most archived kernels that are indexed: reading one takes about 1 ms."""

_PACKAGE = Path(kernelwright.__file__).parent
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")


@dataclass(frozen=True)
class Passage:
    source: str
    """Where it stands: `device/copy.cuh`, `docs/timing.md: Modes`, `kernel of chain:softmax:64x64:fp32`."""
    text: str


class Index:
    """BM25 over passages.

    >>> Index([Passage("a", "cp.async copies"), Passage("b", "wgmma multiplies")]).search("async copy", 1)[0].source
    'a'
    """

    def __init__(self, passages: Iterable[Passage]):
        self.passages = list(passages)
        self._counts = [Counter(words(f"{p.source} {p.text}")) for p in self.passages]
        self._lengths = [sum(c.values()) for c in self._counts]
        self._mean = sum(self._lengths) / max(1, len(self._lengths))
        self._holding = Counter(word for c in self._counts for word in c)

    def search(self, query: str, n: int) -> list[Passage]:
        """Up to n passages that share a word with the query, best first; equals in the order of the collection."""
        scores = [self._score(i, set(words(query))) for i in range(len(self.passages))]
        best = sorted(range(len(scores)), key=lambda i: -scores[i])[:n]
        return [self.passages[i] for i in best if scores[i] > 0]

    def _score(self, i: int, query: set[str]) -> float:
        total = 0.0
        for word in query & self._counts[i].keys():
            holding, count = self._holding[word], self._counts[i][word]
            rarity = math.log(1 + (len(self.passages) - holding + 0.5) / (holding + 0.5))
            total += rarity * count * (K1 + 1) / (count + K1 * (1 - B + B * self._lengths[i] / self._mean))
        return total


def words(text: str) -> list[str]:
    """Lower-case words and numbers; identifiers also by their parts: `cp_async_wait` has cp, async and wait, `TensorMap` tensor and map.
    A plural's s is cut off."""
    found = [w.lower() for w in _WORD.findall(text)]
    return [w[:-1] if len(w) > 3 and w.endswith("s") and not w.endswith("ss") else w for w in found]


@lru_cache(maxsize=1)
def own_passages() -> tuple[Passage, ...]:
    """Of the docs on verification and timing, of the device headers and the CPU families' headers that come with this installation. The
    device headers' README is in every prompt for a GPU anyway."""
    # in a checkout the docs lie beside src/; in a wheel, inside the package
    docs = next((d for d in (_PACKAGE / "docs", _PACKAGE.parents[1] / "docs") if d.is_dir()), None)
    found: list[Passage] = []
    for path in (docs / "verification.md", docs / "timing.md") if docs else ():  # the other pages are for users, not for kernels
        found += _sections(f"docs/{path.name}", path.read_text())
    for path in (*sorted((_PACKAGE / "device").glob("*.cuh")), *sorted((_PACKAGE / "families").glob("*_cpu/*.h"))):
        found += (Passage(str(path.relative_to(_PACKAGE)), part) for part in _cut(path.read_text().split("\n\n"), "\n\n"))
    return tuple(found)


def kernel_passages(archive: Archive, like: Workload, target: str) -> Iterator[Passage]:
    """The end of the fastest right kernel of other Workloads on that target, those of the same Problem first: a source's own kernel comes
    after the helpers that it is built from."""
    others = [w for w in archive.workloads() if w.id != like.id]
    others.sort(key=lambda w: (w.problem != like.problem, w.problem.split(":")[0] != like.problem.split(":")[0], w.name))
    for w in others[:KERNELS]:
        best = archive.best(w, target, own=True)
        if best is not None:
            yield Passage(f"kernel of {w.name}, {shown(best)}", best.candidate.source[-PASSAGE:])


def shown(trial: Trial) -> str:
    """`2.31x of eager`."""
    compared = reference(trial)
    return f"{compared.ratio:.2f}x of {compared.rival}" if compared else "never compared"


def _sections(name: str, text: str) -> list[Passage]:
    """Of a Markdown file, by headings."""
    found, heading = [], ""
    for part in re.split(r"^(?=#)", text, flags=re.MULTILINE):
        if part.startswith("#"):
            heading = part.splitlines()[0].lstrip("# ")
        found += (Passage(f"{name}: {heading}", block) for block in _cut(part.split("\n\n"), "\n\n"))
    return found


def _cut(parts: Sequence[str], joint: str) -> list[str]:
    """Neighbouring parts (functions with their comments, paragraphs) joined to passages of at most PASSAGE characters; a longer part is cut
    off there."""
    found: list[str] = []
    for part in (p.strip() for p in parts):
        if found and len(found[-1]) + len(joint) + len(part) <= PASSAGE:
            found[-1] += joint + part
        elif part:
            found.append(part[:PASSAGE])
    return found
