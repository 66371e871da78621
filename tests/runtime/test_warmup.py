"""kw.warmup on a scripted device: what is measured, pinned, kept and thrown away. The clock itself is the search's (tests/targets)."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest
import torch

import kernelwright as kw
from kernelwright.families import families_for
from kernelwright.problems import resolve
from kernelwright.records import Environment
from kernelwright.runtime import api, engine, pack, pins, warmup
from kernelwright.runtime.dispatch import Choice
from kernelwright.targets import fake_device, target
from kernelwright.targets.fake_device import RIVAL_US, FakeDevice
from kernelwright.targets.target import TargetUnavailable
from made_up import made_up_pack, scripted

CPU = torch.device("cpu")
HERE = Environment(target="fake", device="scripted device")
FAST, SLOW = scripted(us=5.0), scripted(us=50.0)


@pytest.fixture
def used(tmp_path, monkeypatch):
    """Has products of this machine served from a pack of scripted kernels, by (problem, kernel)."""

    def use(*kernels, environment: dict[str, str] | None = None) -> engine.Engine:
        made = made_up_pack(tmp_path / f"p{len(list(tmp_path.iterdir()))}", "fake", HERE, kernels)
        launcher = SimpleNamespace(launch=None, product=None, operation=lambda name: 0)
        one = engine.Engine(made, CPU, launcher, 4, environment or pins.environment(made, "fake", "scripted device"))  # pyright: ignore[reportArgumentType]
        monkeypatch.setattr(engine, "_engines", {CPU: one})
        return one

    monkeypatch.setattr(warmup, "_gpu", lambda: CPU)
    monkeypatch.setattr(warmup, "_open", FakeDevice)
    for name in ("fast", "numbers"):
        monkeypatch.setattr(engine.ops, name, getattr(engine.ops, name))
    return use


def test_the_fastest_is_pinned(used):
    one = used(("gemm:8x8x8:fp16:nn", SLOW), ("gemm:8x8x16:fp16:nn", FAST))
    told = []
    (choice,) = kw.warmup([(16, 16, 16)], told=lambda *at: told.append(at))
    assert choice.source == "pinned" and choice.entry is not None and choice.entry.candidate == FAST.id
    assert choice.own_us == pytest.approx(1.2 * 5, rel=0.02) and choice.vendor_us == pytest.approx(RIVAL_US, rel=0.02)
    assert told == [(0, 1), (1, 1)]
    assert "gemm:16x16x16:fp16:nn calls kernel" in choice.explain() and "(pinned): measured on 20" in choice.explain()
    a, b = torch.ones(16, 16, dtype=torch.float16), torch.ones(16, 16, dtype=torch.float16)
    assert "(pinned): measured on 20" in api.explain(a, b)
    assert one.dispatcher.choose(resolve("gemm:16x16x24:fp16:nn")).source != "pinned"


def test_the_library_is_pinned_where_it_is_as_fast(used):
    used(("gemm:8x8x8:fp16:nn", SLOW), ("gemm:8x8x16:fp16:nn", scripted(us=RIVAL_US / 1.2)))
    (choice,) = kw.warmup(["gemm:16x16x16:fp16:nn"])
    assert choice.library and choice.source == "pinned" and choice.own_us == pytest.approx(RIVAL_US, rel=0.02)


def test_other_dtypes_layouts_and_epilogues_have_kernels_of_their_own(used):
    used(("gemm:8x8x8:bf16:nt", FAST), ("linear:8x8x8:fp16:nt:bias+gelu", FAST))
    choices = kw.warmup([(4, 8, 16), "linear:4x8x16:fp16:nt:bias+gelu", "gemm:4x8x16:fp16:nn"], dtype="bf16", layout="nt")
    assert [c.workload.name for c in choices] == ["gemm:4x8x16:bf16:nt", "linear:4x8x16:fp16:nt:bias+gelu", "gemm:4x8x16:fp16:nn"]
    assert [c.library for c in choices] == [False, False, True]


@pytest.mark.parametrize("broken", [{"result": "zeros"}, {"result": "partial"}])
def test_a_wrong_kernel_is_not_pinned_however_fast(used, broken):
    used(("gemm:8x8x8:fp16:nn", scripted(us=1.0, **broken)), ("gemm:8x8x16:fp16:nn", FAST))
    with pytest.warns(RuntimeWarning, match="is wrong for gemm:16x16x16:fp16:nn"):
        (choice,) = kw.warmup([(16, 16, 16)])
    assert choice.entry is not None and choice.entry.candidate == FAST.id


def test_on_a_busy_host_nothing_is_pinned(used, monkeypatch):
    used(("gemm:8x8x8:fp16:nn", FAST))
    monkeypatch.setattr(fake_device._Clock, "sample", lambda self, mode, launches: (math.nan, launches))
    with pytest.warns(RuntimeWarning, match="gemm:16x16x16:fp16:nn was not measured: the host was too busy"):
        (choice,) = kw.warmup([(16, 16, 16)])
    assert choice.source != "pinned"


def test_where_the_library_takes_long_it_is_pinned_without_a_contest(used, monkeypatch):
    """No kernel would be called there; and buffers of gigabytes are not captured for nothing."""
    used(("gemm:8x8x8:fp16:nn", FAST))
    monkeypatch.setattr(warmup, "_rounds", lambda *_: pytest.fail("not measured against each other"))
    monkeypatch.setattr(warmup, "LONG_US", RIVAL_US / 1.3)
    (choice,) = kw.warmup([(16, 16, 16)])
    assert choice.library and choice.source == "pinned" and choice.own_us is None
    assert choice.vendor_us == pytest.approx(RIVAL_US, rel=0.05)


def test_a_capture_that_memory_does_not_suffice_for_is_not_begun(used, monkeypatch):
    used(("gemm:8x8x8:fp16:nn", FAST))
    left = [1e6, 2e6]
    monkeypatch.setattr(warmup, "_free", lambda device: left.pop(0))
    with pytest.warns(
        RuntimeWarning, match=r"gemm:16x16x16:fp16:nn was not measured: a CUDA graph of it needs 0\.1 GB .*, and 0\.0 are free"
    ):
        (choice,) = kw.warmup([(16, 16, 16)])
    assert choice.source != "pinned" and not left, "what PyTorch keeps for itself is given back first"


def test_buffers_that_do_not_fit_are_said_and_passed_over(used, monkeypatch):
    used(("gemm:8x8x8:fp16:nn", FAST))
    plain = warmup._sets

    def sets(device, problem, w, sms):
        if w.axes["M"] > 16:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return plain(device, problem, w, sms)

    monkeypatch.setattr(warmup, "_sets", sets)
    with pytest.warns(RuntimeWarning, match="gemm:32x16x16:fp16:nn was not measured: CUDA out of memory"):
        first, second = kw.warmup([(32, 16, 16), (16, 16, 16)])
    assert first.source != "pinned" and second.source == "pinned"


@pytest.mark.parametrize("stage", ["load", "run"])
def test_a_kernel_that_refuses_or_fails_is_passed_over(used, stage):
    used(("gemm:8x8x8:fp16:nn", scripted(us=1.0, fault={stage: "REFUSED" if stage == "load" else "LAUNCH_ERROR"})))
    (choice,) = kw.warmup([(16, 16, 16)])
    assert choice.library and choice.own_us is None and choice.vendor_us is not None


def test_what_was_tuned_or_pinned_is_measured_only_when_asked(used, monkeypatch):
    used(("gemm:8x8x8:fp16:nn", FAST))
    measured = []
    plain = warmup._measured
    monkeypatch.setattr(warmup, "_measured", lambda device, serving, w: measured.append(w.name) or plain(device, serving, w))
    shapes = [(8, 8, 8), (16, 8, 8), (16, 8, 8)]
    assert [c.source for c in kw.warmup(shapes)] == ["measured", "pinned", "pinned"]
    assert measured == ["gemm:16x8x8:fp16:nn"]
    kw.warmup(shapes)
    assert len(measured) == 1
    assert [c.source for c in kw.warmup(shapes, again=True)] == ["pinned"] * 3 and len(measured) == 3


def test_the_next_process_begins_with_it_and_another_environment_without(used, home):
    one = used(("gemm:8x8x8:fp16:nn", FAST))
    kw.warmup([(16, 16, 16)])
    kw.warmup([(32, 16, 16)])
    w, launcher = resolve("gemm:16x16x16:fp16:nn"), one._launcher

    def again(**changes: str) -> Choice:
        return engine.Engine(one.pack, CPU, launcher, 4, one.environment | changes).dispatcher.choose(w)

    assert again().source == "pinned" and again().entry is not None
    for name in ("driver", "torch", "CUDA", "kernelwright", "pack", "target", "device"):
        assert again(**{name: "another"}).source != "pinned", name
    (file,) = (home / "warmup").iterdir()
    assert len(json.loads(file.read_text())["pins"]) == 2
    pins.write(one.environment | {"driver": "another"}, pins.read(one.environment)[:1])
    assert len(list((home / "warmup").iterdir())) == 1 and again().source != "pinned", "replaced"
    for damaged in ("", "{}", '{"environment": 3}', "\x00"):
        file.write_text(damaged)
        assert again().source != "pinned"
    other = pack.Pack(one.pack.path, one.pack.manifest.replace(entries=()))
    assert not pins.pinned(other, [p for p in pins.read(one.environment) if p.candidate]), "a kernel that the pack has no more"


def test_the_environment_names_the_driver(used, monkeypatch, tmp_path):
    one = used(("gemm:8x8x8:fp16:nn", FAST))
    (tmp_path / "version").write_text("580.95.05\n")
    monkeypatch.setattr(pins, "_DRIVER", tmp_path / "version")
    found = pins.environment(one.pack, "cuda:sm_90", "NVIDIA H200")
    assert found["driver"] == "580.95.05" and found["torch"] == torch.__version__ and found["pack"] == one.pack.manifest.checksum


def test_without_a_place_it_counts_for_this_process(used, monkeypatch, tmp_path):
    one = used(("gemm:8x8x8:fp16:nn", FAST))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KERNELWRIGHT_HOME", str(tmp_path / "file"))
    with pytest.warns(RuntimeWarning, match=r"counts for this process alone: .*file is in its way"):
        (choice,) = kw.warmup([(16, 16, 16)])
    assert choice.source == "pinned" and not pins.read(one.environment)


def test_wrong_requests_say_what_is_possible(used):
    used(("gemm:8x8x8:fp16:nn", FAST))
    for shape, said in (
        ((16, 16), r"give \(M, N, K\)"),
        ((16, 0, 16), "an integer above 0"),
        ("gemm:8x8x8:fp32:nn", "give products of fp16 or bf16"),
        ("chain:softmax:8x8", "give products"),
        ("linear:8x8x8:fp16:nt:bias+residual", "give products"),
        ("gemm:8", "M x N x K"),
    ):
        with pytest.raises(ValueError, match=said):
            kw.warmup([shape])
    with pytest.raises(ValueError, match="fp33"):
        kw.warmup([(8, 8, 8)], dtype="fp33")


def test_without_a_gpu_or_a_pack_it_says_so(monkeypatch):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(TargetUnavailable, match="target cuda cannot be used here: "):
        kw.warmup([(8, 8, 8)])
    monkeypatch.setattr(warmup, "_gpu", lambda: CPU)
    monkeypatch.setattr(engine, "_engines", {})
    with pytest.raises(pack.PackError, match=r"no pack serves cpu; name one with kw\.use"):
        kw.warmup([(8, 8, 8)])


def test_what_is_pinned_is_what_is_launched(serving, monkeypatch):
    """Also where tensors like these were met before."""
    a, b = (torch.randn(s).half() for s in ((64, 64), (64, 32)))
    api.matmul(a, b), api.matmul(a, b)
    assert len(serving.cuda.launches()) == 2
    w = resolve("gemm:64x32x64:fp16:nn")
    pin = pins.Pin(workload=w, candidate="", own_us=2.0, vendor_us=1.0, measured="2026-01-31")
    warmup._keep(serving.engine, [pin])
    for _ in range(2):
        assert torch.equal(api.matmul(a, b), a @ b) and len(serving.cuda.launches()) == 2
    assert api.explain(a, b).startswith("gemm:64x32x64:fp16:nn calls the library (pinned): measured on 2026-01-31.")
    warmup._keep(serving.engine, [pin.replace(candidate=serving.engine.pack.entry(w).candidate, own_us=0.5)])
    api.matmul(a, b)
    assert len(serving.cuda.launches()) == 3


@pytest.mark.gpu
def test_on_a_gpu(tmp_path, monkeypatch):
    """Measured for real, and the result is right."""
    monkeypatch.setattr(engine, "_paths", [])
    monkeypatch.setattr(engine, "_engines", {})
    facts, gpu = target("cuda").facts(), torch.cuda.get_device_properties(0)
    made = Environment(target=f"cuda:sm_{gpu.major}{gpu.minor}", device=gpu.name)
    w = resolve("gemm:256x512x256:fp16:nn")
    kernels = [(w.name, f.render(f.seeds(w, facts)[0], w, facts)) for f in families_for(w, facts)[0]]
    kw.use(made_up_pack(tmp_path / "p", made.target, made, kernels[:1]).path)
    (choice,) = kw.warmup([(512, 512, 256)])
    assert choice.source == "pinned" and choice.own_us and choice.vendor_us and 0.5 < choice.vendor_us < 1000
    rng = torch.Generator("cuda").manual_seed(1)
    a, b = (torch.randint(-1, 2, s, generator=rng, device="cuda").half() for s in ((512, 256), (256, 512)))
    for _ in range(3):
        assert torch.equal(kw.matmul(a, b), a @ b)
    assert "(pinned): measured on" in kw.explain(a, b)


def test_progress_on_a_terminal_and_in_a_log(monkeypatch, capsys):
    from kernelwright.runtime import progress

    told = progress.steps("measuring")
    told(0, 2)
    assert capsys.readouterr().err == "", "short work leaves no line in a log"
    monkeypatch.setattr(progress, "SECONDS", 0)
    told(1, 2)
    assert capsys.readouterr().err == "measuring: 1 of 2\n"
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    told = progress.steps("measuring")
    told(1, 2), told(2, 2)
    assert capsys.readouterr().err == "\rmeasuring: 1 of 2\rmeasuring: 2 of 2\n"
