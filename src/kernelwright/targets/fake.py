"""The fake target: a scripted device with a scripted clock, so that every layer is testable without hardware.

A candidate's source is a JSON script, all keys optional:
    us       time of one launch (default 10)
    jitter   relative spread of the samples (default 0.01)
    result   `right` (default), `zeros`, `partial` (last element unwritten), `noise` (other bits each run)
    writes   `input` (changes an input), `beyond` (writes past an output)
    fault    {"compile" | "load" | "run" | "time": OUTCOME}: raised there
    dies     true: the judge process exits in the run, as after an illegal address
    kills    true: the compiling process is killed, as when memory runs out
    hangs    true: the run never ends
    cold_factor   device-cold takes this many times `us` (default 1.2)
Rivals take 20 us each.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from pathlib import Path

from kernelwright.families.family import DeviceFacts
from kernelwright.records import Build, Candidate, Outcome
from kernelwright.targets.target import CandidateFault, Device, Target


class FakeTarget(Target):
    name = "fake"
    kind = "fake"

    def unavailable(self) -> str | None:
        return None

    def facts(self) -> DeviceFacts:
        return DeviceFacts(target="fake", name="scripted device", sms=4, smem_per_block=64 << 10)

    def build_key(self, candidate: Candidate) -> str:
        return hashlib.sha256(candidate.source.encode()).hexdigest()[:32]

    def compile(self, candidate: Candidate, directory: Path) -> Build:
        script = script_of(candidate, "compile")
        if script.get("kills"):
            os.kill(os.getpid(), signal.SIGKILL)
        if script.get("compiles_for_ever"):
            time.sleep(3600)
        artifact = directory / "script.json"
        artifact.write_text(candidate.source)
        return Build(key=self.build_key(candidate), artifact=str(artifact), compiler="script", arch="fake")

    def open(self) -> Device:
        from kernelwright.targets.fake_device import FakeDevice  # with torch, which compiling does without

        return FakeDevice()


def script_of(candidate: Candidate, stage: str) -> dict:
    """Raises CandidateFault where there is none, or it has a fault at this stage."""
    try:
        script = json.loads(candidate.source)
    except ValueError as error:
        raise CandidateFault(Outcome.COMPILE_ERROR, f"the script is not JSON: {error}") from None
    fault(script, stage)
    return script


def fault(script: dict, stage: str) -> None:
    if stage in script.get("fault", {}):
        raise CandidateFault(Outcome(script["fault"][stage]), f"scripted at {stage}")
