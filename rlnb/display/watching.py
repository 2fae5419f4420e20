"""Follow a run that goes on elsewhere: in a terminal, as a job, or in a notebook whose tab was closed."""

import asyncio
import socket
from contextlib import suppress
from pathlib import Path
from pkgutil import resolve_name

import psutil
import yaml
from IPython.display import display

from rlnb.display.live import LiveFigure
from rlnb.display.tables import Table, show_facts
from rlnb.errors import ParamsError
from rlnb.params.loading import ROOT
from rlnb.run.directory import Status, read_last_step, read_status
from rlnb.run.disk import GIB

FIGURES = {
    "grpo_code_execution": "rlnb.code_execution.display:draw_rewards",
    "grpo_code_game": "rlnb.code_game.display:draw_game",
    "gpt_oss_2048": "rlnb.game_2048.display:draw_strategies",
    "spiral_self_play": "rlnb.selfplay.display:draw_self_play",
    "ppo_openspiel": "rlnb.ppo.display:draw_ppo",
}


def watch(directory: str | Path, *, seconds: float = 5.0) -> "asyncio.Task[None] | None":
    """Draw a run's figure, completions and state now, and again every `seconds` until it ends.

    A relative path may also begin at the project's folder, as runs print it. Returns at once in a notebook,
    with the task that goes on; `task.cancel()` ends the watching, not the run. Raises ParamsError for a
    directory without a training.
    """
    run = Path(directory) if Path(directory).exists() else ROOT / directory
    try:
        params = yaml.safe_load((run / "params.yaml").read_text(encoding="utf-8"))
        draw = resolve_name(FIGURES[params["notebook"]])
        max_steps = int(params["training"]["max_steps"])
    except (OSError, LookupError, TypeError, ValueError, yaml.YAMLError) as error:
        raise ParamsError(
            f"directory = {str(directory)!r} holds no training's params.yaml; write a run's directory, which "
            "`rlnb runs` lists"
        ) from error
    figure = LiveFigure(run, draw)
    state = display(Table([], []), display_id=True)

    def update() -> bool:
        status = read_status(run)
        figure.update(read_last_step(run) or 0, max_steps)
        state.update(show_facts(describe_run(run, status)))
        return status is not None and status.state == "running"

    async def follow() -> None:
        is_running = True
        while is_running:
            await asyncio.sleep(seconds)
            with suppress(OSError):  # of a network file system, which may pass
                is_running = update()

    if not update():
        return None
    try:
        return asyncio.get_running_loop().create_task(follow())
    except RuntimeError:  # outside a notebook there is no loop yet
        asyncio.run(follow())
        return None


def describe_run(run: Path, status: Status | None) -> dict[str, str]:
    """Return a run's state, its memory, how to stop it, and where its files are."""
    if status is None:
        return {"state": "not begun"}
    facts = {
        "state": f"{status.state} {status.reason}".strip(),
        "attempt": f"{status.attempt}, {status.started}",
    }
    if status.state == "running":
        is_here = status.host == socket.gethostname()
        stop = f"scancel --batch --signal=TERM {status.job}" if status.job else f"kill {status.pid}"
        facts["stop and save"] = stop if is_here or status.job else f"{stop} on {status.host}"
        if is_here:
            facts["memory"] = f"{used_memory(status.pid) / GIB:.1f} GiB"
    if (notebook := run / status.notebook).exists():  # a run in JupyterLab is the notebook that is open there
        facts["notebook"] = str(notebook)
    facts["curves"] = f"tensorboard --logdir {run}"
    return facts


def used_memory(pid: int) -> int:
    """Return the bytes that a process and its children hold, 0 where it has ended."""
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        return sum(int(each.memory_info().rss) for each in (process, *process.children(recursive=True)))
    return 0
