"""The command `rlnb`: each subcommand is one call into the packages below."""

import argparse
import contextlib
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import rlnb
from rlnb.batch.commands import PARAMETERS, add_batch_commands, add_command, path_or_none
from rlnb.doctor import main as run_doctor
from rlnb.errors import DiskFull, ParamsError, RlnbError
from rlnb.machine import Machine, Recommendation, apply_environment, check_python, probe, recommend
from rlnb.run.directory import EXIT_PREEMPTED, StoppedEarly, stopping_early
from rlnb.run.disk import NO_ROOM
from rlnb.run.slurm import how_to_go_on

RUN_HELP = """\
Run a notebook without a browser. Its output is in DIR/attempt-01.ipynb, its parameters in DIR/params.yaml,
its state in DIR/status.json. Run the same command again, and an unfinished run goes on from its last
checkpoint.

SIGTERM, SIGUSR1 and SIGHUP (the terminal was closed; not under nohup): the notebook saves a checkpoint at
the end of its step and stops; an evaluation between steps is cut short. SIGINT (Ctrl-C): the same while it
trains, else the cell stops at once; a second one kills it.

Exit codes: 0 done; 1 a cell failed; 2 refused before it ran; 85 stopped by a signal, run again to go on;
138 the kernel died (most often: out of memory).
"""

# Options of `rlnb eval`: the field that each one sets, the name of its value and its meaning.
EVAL_OPTIONS = {
    "--adapters": ("model.adapters", "DIR", "folder of trained adapters: a run's adapters/ or a checkpoint"),
    "--plus": ("evaluation.plus_path", "PATH", "EvalPlus's MbppPlus.jsonl: use its problems and inputs"),
    "--samples": ("writer.samples_path", "FILE", "check the completions in this file instead of writing any"),
    "--endpoint": ("writer.base_url", "URL", "a server with OpenAI's protocol: http://host:port/v1"),
    "--served-model": ("writer.served_model", "NAME", "the model's name on that server"),
}

# Options of `rlnb eval` for games: the argument of `evaluate_checkpoint`, its default, and as above.
ARENA_OPTIONS = {
    "--checkpoint": ("checkpoint", None, "DIR", "a run, its checkpoints/checkpoint-N, or final: the last"),
    "--opponent": ("opponents", "random", "NAMES", "random (default), mcts:N, perfect, nash; with commas"),
    "--episodes": ("num_episodes", 100, "NUMBER", "games against each opponent in all; even (default: 100)"),
}
# Options of `rlnb export`: the name of its value and its meaning.
EXPORT_OPTIONS = {
    "--base": ("MODEL", "model to merge into: hub id or folder (default: the one that the adapters name)"),
    "--out": ("DIR", "folder to write (default: outputs/export/FORMAT)"),
    "--cache-dir": ("DIR", "folder of downloaded models (default: ./model_cache)"),
    "--repo-id": ("OWNER/NAME", "upload to this repository of the hub"),
    "--license": ("NAME", "license for the model card, by the hub's name"),
}


class LastingStream(io.TextIOBase):
    """A terminal's stream that may be closed, by `| head` or with its window: the rest is discarded.

    A run of hours must not end because its output is no longer read. stream: None if it was closed at the
    start.
    """

    def __init__(self, stream: TextIO | None, *, descriptor: int) -> None:
        self._stream, self._descriptor, self.has_lost = stream, descriptor, False
        if stream is None:
            self._go_nowhere()
        elif isinstance(stream, io.TextIOWrapper):  # a terminal may not show all letters
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Write and flush; after the first failure discard the text."""
        if self._stream is not None:
            try:
                self._stream.write(text)
                self._stream.flush()
            except OSError as error:
                self.has_lost = error.errno in NO_ROOM
                self._go_nowhere()
        return len(text)

    def _go_nowhere(self) -> None:
        self._stream = None
        # The descriptor stays open: Python flushes to it at its exit, and the kernel inherits it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self._descriptor)
        os.set_inheritable(self._descriptor, True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; errors of the user are one message, no traceback."""
    out, err = LastingStream(sys.stdout, descriptor=1), LastingStream(sys.stderr, descriptor=2)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        given = list(sys.argv[1:] if arguments is None else arguments)
        end = given.index("--") if "--" in given else len(given)
        given, sbatch = given[:end], given[end + 1 :]
        parser = make_parser()
        options = parser.parse_args(given)
        if sbatch and given[0] != "submit":
            parser.error("only `rlnb submit` takes options of sbatch after --")
        options.sbatch = sbatch
        try:
            check_python()
            code = int(options.command(options))
            prints_alone = given[0] in ("results", "runs", "configure") or getattr(options, "dry_run", False)
            if out.has_lost and prints_alone:
                raise DiskFull("no room is left where the output goes: it is cut off there")
            return code
        except StoppedEarly as stopped:
            plays_again = getattr(options, "checkpoint", None) and "the same command plays all games again"
            print(f"{stopped}; {plays_again or how_to_go_on()}", file=sys.stderr)
            return EXIT_PREEMPTED
        except RlnbError as error:
            print(f"rlnb: {error}", file=sys.stderr)
            return error.exit_code
        finally:
            if arguments is None:  # the process's end takes a second, after which the exit code must be ours
                for each in (signal.SIGTERM, signal.SIGUSR1):
                    signal.signal(each, signal.SIG_IGN)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="rlnb", description="Reinforcement learning of language models.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    run = add_command(
        commands, "run", _run, "run a notebook, or go on with an unfinished run",
        description=RUN_HELP, shared=(*PARAMETERS, "--out"),
    )  # fmt: skip
    run.add_argument("notebook", type=Path, metavar="NOTEBOOK")
    run.add_argument(
        "--nproc",
        type=int,
        default=1,
        metavar="N",
        help="processes on this machine that train together, a GPU each (default: 1)",
    )
    run.add_argument("--check", action="store_true", help="say what would be refused; run nothing")

    add_batch_commands(commands, main)

    # Without help, so not listed: what `rlnb run --nproc` starts for each rank.
    of_rank = commands.add_parser("rank")
    of_rank.add_argument("notebook", type=Path)
    of_rank.add_argument("output", type=Path)
    of_rank.add_argument("parameters", type=json.loads)
    of_rank.set_defaults(command=_run_as_rank)

    evaluate = add_command(
        commands, "eval", _evaluate,
        "measure pass rates on MBPP, or play games with a checkpoint",
        description="Run notebooks/mbpp_eval.ipynb: the pass rates of a model, a server or a file on MBPP.\n"
        "With --checkpoint let a checkpoint of self-play or PPO play games: its scores are printed, and\n"
        "written as JSON and a picture into --out (default: a new folder arena-001 of its run).",
        shared=(*PARAMETERS, "--out"),
    )  # fmt: skip
    evaluate.set_defaults(check=False, nproc=1)
    for option, (field, name, meaning) in EVAL_OPTIONS.items():
        evaluate.add_argument(option, dest=field, metavar=name, help=meaning)
    for option, (dest, default, name, text) in ARENA_OPTIONS.items():
        kind = int if isinstance(default, int) else str
        evaluate.add_argument(option, dest=dest, default=default, type=kind, metavar=name, help=text)

    export = add_command(
        commands, "export", _export, "write adapters as a model that others load",
        description="Write trained adapters alone or merged into a base, load what was written, compare it\n"
        "with the adapted model, and upload it where --repo-id says so.",
    )  # fmt: skip
    export.add_argument("--adapters", required=True, type=Path, metavar="DIR", help="a run's or a checkpoint")
    export.add_argument(
        "--format", choices=["lora", "merged_16bit", "merged_32bit", "mxfp4"], default="merged_16bit",
        help="what to write (default: merged_16bit)",
    )  # fmt: skip
    for option, (name, meaning) in EXPORT_OPTIONS.items():
        export.add_argument(option, default="", metavar=name, help=meaning)
    export.add_argument("--public", action="store_true", help="a new repository is public, not private")

    configure = add_command(
        commands, "configure", _configure, "write a profile by questions and answers, or print all values",
        description="Ask for the parameters of a notebook, check each answer at once, say how much memory\n"
        "they need, and write what differs from default.yaml as a profile; or print all of them.",
        shared=PARAMETERS,
    )  # fmt: skip
    configure.add_argument("notebook", metavar="NOTEBOOK", help="its name")
    configure.add_argument("--output", metavar="FILE.yaml", help="default: params/<notebook>/mine.yaml")
    configure.add_argument(
        "--print", action="store_true", dest="show_all",
        help="ask nothing and print all values as YAML, to be edited and run with --profile FILE.yaml",
    )  # fmt: skip

    text = "say what this machine has, and what to do about what is missing"
    add_command(commands, "doctor", lambda _: run_doctor(), text)
    return parser


def _run(options: argparse.Namespace) -> int:
    with stopping_early():
        # Imported here: `rlnb doctor` and --help need neither pydantic nor YAML.
        from rlnb.params import parse_set
        from rlnb.run.headless import plan_run, run_notebook
        from rlnb.run.memory import TOO_LARGE

        out, overrides = path_or_none(options.out), parse_set(*options.assignments)
        wanted = {"profile": options.profile, "overrides": overrides, "out": out, "num_ranks": options.nproc}
        if not options.check:
            return run_notebook(options.notebook, **wanted)
        plan = plan_run(options.notebook, **wanted)
        run = f"{plan.directory}: {plan.notebook.name}, profile {plan.profile}, for {plan.machine.name}"
        verdict = "would be tried" if TOO_LARGE in plan.memory else "not refused"
        print(*filter(None, [plan.memory]), f"{run}: {verdict}", sep="\n")
        return 0


def _run_as_rank(options: argparse.Namespace) -> int:
    try:
        with stopping_early():
            from rlnb.run.papermill_engine.execution import execute

            return execute(
                options.notebook, options.output, parameters=options.parameters, says_how_it_ended=False
            )
    except StoppedEarly:
        return EXIT_PREEMPTED


def _prepare_machine(*, ask_hub: bool) -> tuple[Machine, Recommendation]:
    """Set what has to be set before torch is imported; return this machine and what suits it."""
    from rlnb.params import load_dotenv

    load_dotenv(Path.cwd())
    machine = probe(ask_hub=ask_hub)
    advice = recommend(machine)
    apply_environment(advice)
    return machine, advice


def _evaluate(options: argparse.Namespace) -> int:
    given = {field: getattr(options, field) for field, _, _ in EVAL_OPTIONS.values()}
    named = {option: given[field] for option, (field, _, _) in EVAL_OPTIONS.items()}
    for option, value in {**named, "--checkpoint": options.checkpoint}.items():
        if value is not None and not value.strip():
            raise ParamsError(f"{option}: is empty; most likely the shell variable in it is not set")
    assignments = [f"{field}={value}" for field, value in given.items() if value is not None]
    if options.checkpoint:
        if assignments or options.assignments or options.profile:
            raise ParamsError("--set, --profile and the like: are for MBPP, and --checkpoint for games")
        _prepare_machine(ask_hub=False)  # the hub is asked where the model is not here
        from rlnb.ppo.checkpoint_arena import evaluate_checkpoint  # imports torch

        opponents = [name.strip() for name in options.opponents.split(",")]
        checkpoint, out = os.path.expanduser(options.checkpoint), path_or_none(options.out)
        wanted = {"opponents": opponents, "num_episodes": options.num_episodes, "out": out and str(out)}
        with stopping_early():
            evaluate_checkpoint(checkpoint, **wanted)
        return 0
    if any(getattr(options, name) != default for name, default, _, _ in ARENA_OPTIONS.values()):
        raise ParamsError("--checkpoint: is missing; name a run or its checkpoints/checkpoint-N")
    # A run of the notebook of this project; --set wins over the short options.
    options.assignments = assignments + options.assignments
    options.notebook = Path(rlnb.__file__).resolve().parents[1] / "notebooks" / "mbpp_eval.ipynb"
    return _run(options)


def _export(options: argparse.Namespace) -> int:
    with stopping_early():
        machine, advice = _prepare_machine(ask_hub=True)
        from rlnb.policy.export_command import export

        export(
            options.adapters, base=options.base, form=options.format,
            out=Path(options.out or f"outputs/export/{options.format}"),
            cache_dir=options.cache_dir or "./model_cache",
            dtype="float32" if machine.capability is None else advice.dtype,
            repo_id=options.repo_id, public=options.public, license=options.license,
        )  # fmt: skip
    return 0


def _configure(options: argparse.Namespace) -> int:
    from rlnb.configure.terminal import main

    names = ("notebook", "profile", "output", "assignments", "show_all")
    return main(**{name: getattr(options, name) for name in names})


if __name__ == "__main__":
    sys.exit(main())
