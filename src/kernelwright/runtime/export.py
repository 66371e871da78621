"""A Pack in other forms: without its builds, and as a folder that Hugging Face's `kernels` loads.

The layout is that of `kernels` 0.17 (https://huggingface.co/docs/kernels): `build/VARIANT/` with `__init__.py` and metadata.json. Ours is
the variant `torch-cuda`, which is for any version of PyTorch and CUDA: our own launcher, not a compiled extension, starts the cubins. Its
`python-depends` is empty since `kernels` refuses every name that is not on its own list, and kernelwright is not on it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
from pathlib import Path

import msgspec

from kernelwright import __version__
from kernelwright.runtime.pack import Pack, PackError, load, whole

NAME = re.compile(r"[a-z][-a-z0-9]*[a-z0-9]")
"""Of a kernel, as `kernels` wants it."""
VARIANT = "build/torch-cuda"
LICENSE = "Apache-2.0"


def sources(pack: Pack, out: str | Path) -> Path:
    """The Pack without its builds, which `kernelwright pack build` makes again from the sources. Raises PackError."""
    if not any(e.artifact for e in pack.entries):
        raise PackError(f"the pack {pack.path} has no builds, so it is as small as can be; copy its folder")
    return _made(out, lambda folder: _copy(pack, folder, builds=False))


def hf_kernels(pack: Pack, out: str | Path, name: str, card: str) -> Path:
    """A folder for `kernels.get_local_kernel(Path(out))`, or to upload; `card` is the text of CARD.md. Raises PackError, ValueError."""
    if not NAME.fullmatch(name):
        raise ValueError(f"a kernel cannot be named {name!r}: small letters, digits and dashes, a letter first; choose one with --name")
    target = pack.manifest.environment.target
    if not target.startswith("cuda:sm_"):
        raise PackError(f"the pack {pack.path} is for {target}, and only packs for CUDA devices can be exported to hf-kernels")

    def fill(folder: Path) -> None:
        variant = folder / VARIANT
        variant.mkdir(parents=True)
        _copy(pack, variant / "pack", builds=True)
        (variant / "__init__.py").write_text(_INIT.replace("NAME", name))
        (variant / "metadata.json").write_bytes(_metadata(variant, name, pack))
        (folder / "CARD.md").write_text(card)
        (folder / "README.md").write_text(_README.replace("NAME", name).replace("DEVICE", pack.manifest.environment.device))

    return _made(out, fill)


def _made(out: str | Path, fill) -> Path:
    """A new folder, which is there whole or not at all."""
    out = Path(os.path.abspath(out))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PackError(f"{out} exists; choose another place or delete it")
    with whole(out) as folder:
        fill(folder)
    return out


def _copy(pack: Pack, folder: Path, builds: bool) -> None:
    """What the manifest names, it itself, and the verification, if it has one."""
    names = [n for n in pack.manifest.files if builds or not n.startswith("builds/")]
    for name in ("manifest.json", *names, *(["verification.json"] if (pack.path / "verification.json").exists() else [])):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(pack.path / name, folder / name)
    load(folder, built=builds)


def _metadata(variant: Path, name: str, pack: Pack) -> bytes:
    """metadata.json. The id, also the module's name once loaded, is another for every Pack; `digest` has all files beside this one."""
    sm = int(pack.manifest.environment.target.removeprefix("cuda:sm_"))
    arch = f"{sm // 10}.{sm % 10}" + ("a" if sm >= 90 else "")
    files = sorted(p for p in variant.rglob("*") if p.is_file())
    digests = {p.relative_to(variant).as_posix(): hashlib.sha256(p.read_bytes()).digest() for p in files}
    content = {
        "id": f"_{name.replace('-', '_')}_{pack.manifest.checksum[:12]}",
        "name": name,
        "version": 1,
        "license": LICENSE,
        "python-depends": [],
        "backend": {"type": "cuda", "archs": [arch]},
        "digest": {"algorithm": "sha256", "files": {n: base64.b64encode(d).decode() for n, d in digests.items()}},
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"


_INIT = '''"""NAME: products of matrices by kernels that kernelwright wrote, proved and measured; CARD.md has the figures."""

from pathlib import Path

try:
    import kernelwright
except ImportError as error:
    raise ImportError(f"NAME is served by kernelwright, which is not installed ({error}): pip install kernelwright") from error

kernelwright.use(Path(__file__).parent / "pack")  # warns, and leaves all products to PyTorch, where it cannot be served from

matmul = kernelwright.matmul
linear = kernelwright.linear
addmm = kernelwright.addmm
explain = kernelwright.explain

__all__ = ["addmm", "explain", "linear", "matmul"]
'''

_README = f"""# NAME

Products of fp16 and bf16 matrices on DEVICE: `matmul`, `linear` and `addmm` are PyTorch's functions, served by the kernels of the pack in
`{VARIANT}/pack` wherever one was measured, or is expected, to be faster than PyTorch. CARD.md says how much faster, and where not.

**kernelwright {__version__} or later must be installed**: `pip install kernelwright`. `kernels` cannot say so in metadata.json (its
`python-depends` knows a fixed list of packages); without it, loading ends with a sentence that says what to install.

    from pathlib import Path
    from kernels import get_local_kernel
    NAME = get_local_kernel(Path("this/folder"))
    c = NAME.matmul(a, b)
    print(NAME.explain(a, b))          # which kernel, and why

On another GPU, or with a damaged file, all products go to PyTorch, and a warning says why. Nothing is compiled when it is loaded or used,
but for the launcher, a small C++ extension, once for each machine and version of PyTorch. The calls serve the whole process:
`kernelwright.disable()` switches them off.
"""
