"""The answers of the example's transcript: a kernel that does not compile, its repair, one that is wrong, its repair, a fast one."""

from __future__ import annotations

from pathlib import Path

from kernelwright.propose.llm_calls import Call

TRANSCRIPT = Path(__file__).parents[2] / "examples" / "transcripts" / "new-gelu"
ANSWERS = tuple(answer.text for path in sorted(TRANSCRIPT.glob("*.json")) if (answer := Call.from_json(path.read_bytes()).answer))
PLAIN, FAST = (ANSWERS[i].partition("```cpp\n")[2].partition("\n```")[0] for i in (1, 4))
