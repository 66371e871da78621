"""The command line: one small file a verb. Nothing here imports torch before a verb needs it, so that `--help` answers at once."""

from __future__ import annotations

import typer

from kernelwright.cli import archive, audit, bench, doctor, lint, optimize, pack, replay, report, sparse, train, train_hf, tune, verify
from kernelwright.cli.common import run

app = typer.Typer(
    name="kernelwright",
    help="Writes kernels, proves them right, measures them honestly against the best rivals, ships the winners.",
    epilog="Example: kernelwright optimize chain:new-gelu:1024x1024",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (doctor, lint, optimize, tune, bench, verify, audit, report, replay, train, train_hf):
    module.register(app)
app.add_typer(pack.app, name="pack")
app.add_typer(archive.app, name="archive")
app.add_typer(sparse.app, name="sparse")


def main() -> None:
    """Entry point: exit codes are in `cli.common`."""
    run(app)
