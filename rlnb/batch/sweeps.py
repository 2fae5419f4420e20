"""Sweeps: a grid or a list of parameters, times seeds, as points that each become a run (docs/many_runs.md).

All points are checked before one is started. The folder of a sweep holds points.json and one directory of a
run for each point. Points count from 0, as the tasks of a SLURM array do.
"""

import hashlib
import itertools
import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, Field, ValidationError

from rlnb.errors import ParamsError
from rlnb.machine import Machine, probe, recommend
from rlnb.params import dump_yaml, parse_set
from rlnb.params.cell import read_parameters_cell
from rlnb.params.loading import PROFILE_ENDINGS, choose_profile
from rlnb.params.reading import parse_yaml
from rlnb.params.sections import NotebookParams
from rlnb.run.directory import POINT_NAME, POINTS_FILE
from rlnb.run.disk import write_text
from rlnb.run.headless import choose_edited, is_finished, make_directory
from rlnb.run.prepare import Values, prepare

MAX_POINTS = 1000  # SLURM's usual MaxArraySize is 1001
MAX_NAME_LENGTH = 100  # bytes of a point's name, a directory
POINT_FILE = "point.yaml"  # in the directory of a point: the values that were checked
PROGRESS = 100  # points that are checked between two lines about it

Overrides = dict[str, object]  # {"training.learning_rate": 1e-05, "seed": 2}


class Point(BaseModel, frozen=True):
    """One run of a sweep. name: its directory."""

    name: str = Field(pattern=POINT_NAME)
    overrides: Overrides

    def assignments(self) -> list[str]:
        """Return the overrides as the values of --set."""
        return [f"{name}={_as_text(value)}" for name, value in self.overrides.items()]


class Sweep(BaseModel, frozen=True):
    """The folder of a sweep, and what its points.json says.

    points: all that were ever part of it. params: of those that the present command is about, by their
    indices in points; {} where none has been checked. memory: the estimate for one of them.
    """

    notebook: Path
    profile: str
    points: tuple[Point, ...]
    directory: Path = Field(exclude=True)
    params: dict[int, NotebookParams] = Field(default={}, exclude=True)
    memory: str = Field(default="", exclude=True)

    def run_directory(self, index: int) -> Path:
        return self.directory / self.points[index].name

    def unfinished(self) -> list[int]:
        """Return the points of `params` that are not done."""
        return [
            index for index, each in self.params.items() if not is_finished(self.run_directory(index), each)
        ]

    def run_arguments(self, index: int) -> list[str]:
        """Return the arguments of `rlnb` that run a point, or go on with it."""
        if not 0 <= index < len(self.points):
            raise ParamsError(f"--point {index}: {self.directory} has the points 0 to {len(self.points) - 1}")
        checked = self.run_directory(index) / POINT_FILE
        if not checked.exists():
            raise ParamsError(f"{checked}: is missing; run the command that made the sweep again")
        return ["run", str(self.notebook), "--profile", str(checked), "--out", str(checked.parent)]


class SweepFile(BaseModel, extra="forbid"):
    """A file of params/sweeps/: points as a grid or as a list, and values that all of them share."""

    grid: dict[str, Annotated[list[object], Field(min_length=1)]] = {}
    points: list[Overrides] = Field(default=[], alias="list")
    common: Overrides = Field(default={}, alias="set")


def load_points(sweep: Path | None, *, seeds: str | None, assignments: Sequence[str] = ()) -> list[Point]:
    """Return the points of a sweep file times the seeds; without a file one point a seed.

    seeds: such as "1-5" or "1,3,7". assignments: of --set, for all points; they win over `set:` of the file.
    Raises ParamsError for a file or seeds that cannot be understood, and for too many points. Whether a
    notebook has the fields is checked by `prepare_sweep`.
    """
    if sweep is None and seeds is None:
        raise ParamsError(
            "--sweep or --seeds: is missing; name a file of params/sweeps/, or write --seeds 1-5"
        )
    file = SweepFile.model_validate({"list": [{}]}) if sweep is None else _read_sweep_file(sweep)
    numbers = [] if seeds is None else _read_seeds(seeds)
    num_points = (len(file.points) or math.prod(map(len, file.grid.values()))) * (len(numbers) or 1)
    if num_points > MAX_POINTS:
        raise ParamsError(f"{sweep or '--seeds'}: makes {num_points} points; at most {MAX_POINTS}")
    products = itertools.product(*file.grid.values())
    points = file.points or [dict(zip(file.grid, values, strict=True)) for values in products]
    same = [name for name, value in points[0].items() if all(v.get(name, ...) == value for v in points)]
    if same and len(points) > 1:
        problem = "is the same in all points, and in all of their names; write it under set:"
        print(f"{sweep}: {same[0]} {problem}", file=sys.stderr)
    if numbers:
        points = [{**values, "seed": seed} for values in points for seed in numbers]
    common = {**file.common}
    for name, text in parse_set(*assignments).items():
        common.pop(name, None)
        common[name] = str(text)  # the last counts
    by_points = {name for values in points for name in values}
    if twice := sorted(name for name in common if any(may_be_same(name, other) for other in by_points)):
        raise ParamsError(f"{twice[0]}: is set by the points, and for all of them as well; keep one")
    names = _point_names(points)
    return [Point(name=name, overrides=common | values) for name, values in zip(names, points, strict=True)]


def prepare_sweep(
    notebook: Path,
    *,
    profile: str | None,
    sweep: Path | None,
    seeds: str | None,
    assignments: Sequence[str] = (),
    out: Path | None = None,
    machine: Machine | None = None,
) -> Sweep:
    """Check all points, and return the sweep; `write_sweep` writes its points.json.

    profile: None is what suits this machine. assignments: of --set, for all points. out: None is
    outputs/<notebook>/<sweep>-<profile>, <sweep> being the name of the file, or `seeds`. A folder that was
    prepared before keeps its points, and new ones are added behind them; points that were started already may
    change only what `rlnb run` lets them. machine: that runs the points, None for this one, whose hub and
    servers each point asks when it runs. Raises ParamsError for the first point that is refused.
    """
    machine = machine or probe(ask_hub=False)
    cell = choose_edited(read_parameters_cell(notebook))
    points = load_points(sweep, seeds=seeds, assignments=assignments)
    if profile in (None, "auto"):
        profile = choose_profile(notebook.stem, recommend(machine).profile)
    if profile.endswith(PROFILE_ENDINGS):
        profile = str(Path(profile).absolute())
    folder_name = f"{sweep.stem if sweep else 'seeds'}-{Path(profile).stem}"
    directory = out or Path("outputs", notebook.stem, folder_name)
    if (directory / "params.yaml").exists():
        raise ParamsError(f"--out {directory}: is the directory of a run; name another for the sweep")
    made = Sweep(notebook=notebook.absolute(), profile=profile, points=tuple(points), directory=directory)
    place = str(sweep or "--seeds") + (" or --set" if assignments else "")
    params, memory = _check_points(made, Values(profile, cell, place=place), machine)
    made = made.model_copy(update={"params": params, "memory": memory})
    return _join(read_sweep(directory), made) if (directory / POINTS_FILE).exists() else made


def read_sweep(directory: Path) -> Sweep:
    """Return the sweep of a prepared folder."""
    path = directory / POINTS_FILE
    if not path.is_file():
        raise ParamsError(f"{directory}: holds no {POINTS_FILE}; name the folder of a sweep")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return Sweep.model_validate({**content, "directory": directory})
    except (ValueError, TypeError):
        raise ParamsError(
            f"{path}: is damaged; run the command that made it again, with another --out"
        ) from None


def _check_points(sweep: Sweep, values: Values, machine: Machine) -> tuple[dict[int, NotebookParams], str]:
    """Return the parameters of the points, the estimate of memory of the first one, and all warnings.

    values: of all points, without those of each. Raises ParamsError for a point that is refused or is there
    twice.
    """
    params: dict[int, NotebookParams] = {}
    memory: list[tuple[str, ...]] = []
    indices: dict[str, int] = {}
    for index, point in enumerate(sweep.points):
        if index % PROGRESS == 0 and index > 0:
            print(f"{index} of {len(sweep.points)} points checked", file=sys.stderr, flush=True)
        try:
            if "output_dir" in point.overrides:
                raise ParamsError(f"{values.place}: output_dir is set by --out; remove it")
            given = values._replace(overrides=parse_set(*point.assignments()))
            prepared = prepare(sweep.notebook.stem, given, machine=machine)
            params[index] = prepared.saved
            memory.append(prepared.lines)
            first = indices.setdefault(params[index].model_dump_json(), index)
            if first != index:
                raise ParamsError(f"{values.place}: is the same run as point {first}; keep one")
        except ParamsError as error:
            raise ParamsError(f"{error} (point {index}, {point.name})") from None
    warnings = [line for lines in memory[1:] for line in lines if line.startswith("warning")]
    return params, "\n".join(dict.fromkeys([*memory[0], *warnings]))


def _join(before: Sweep, now: Sweep) -> Sweep:
    """Return the sweep of a folder that was prepared before, with its new points at the end."""
    path = before.directory / POINTS_FILE
    if (before.notebook.name, before.profile) != (now.notebook.name, now.profile):
        made_with = f"{before.notebook.name}, profile {before.profile}"
        raise ParamsError(f"{path}: was made with {made_with}. Give another --out.")
    points = {point.name: point for point in before.points}
    joined: dict[int, NotebookParams] = {}
    for index, point in enumerate(now.points):
        is_finished(before.directory / point.name, now.params[index])  # refuses other parameters
        points[point.name] = point
        joined[list(points).index(point.name)] = now.params[index]
    return now.model_copy(update={"points": tuple(points.values()), "params": joined})


def write_sweep(sweep: Sweep) -> None:
    """Write points.json, and for each point that is not done what was checked, with which it will run.

    The caller has locked the folder.
    """
    make_directory(sweep.directory)
    for index in sweep.unfinished():
        directory = sweep.run_directory(index)
        directory.mkdir(exist_ok=True)
        write_text(directory / POINT_FILE, dump_yaml(sweep.params[index]))
    write_text(sweep.directory / POINTS_FILE, sweep.model_dump_json(indent=1) + "\n")


def _read_seeds(text: str) -> list[int]:
    """Return the seeds of "1-5" or "1,3,7"."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,10})(?:-(\d{1,10}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last < first + MAX_POINTS:
            raise ParamsError(
                f"--seeds {text}: {part!r} is no seed, and no range of at most {MAX_POINTS}; write 1-5 or 1,3"
            )
        seeds += range(first, last + 1)
    return seeds


def _read_sweep_file(path: Path) -> SweepFile:
    try:
        file = SweepFile.model_validate(parse_yaml(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        problems = [f"{path}: {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise ParamsError("\n".join(problems)) from None
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ParamsError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if bool(file.grid) == bool(file.points):
        raise ParamsError(f"{path}: needs either grid: or list:")
    return file


def may_be_same(name: str, other: str) -> bool:
    """Return whether two names may stand for one field: max_steps, training_max_steps, training.max_steps."""
    is_short = "." not in name or "." not in other
    last, other_last = name.rpartition(".")[2], other.rpartition(".")[2]
    return is_short and last == other_last or name.replace(".", "_") == other.replace(".", "_")


def _as_text(value: object) -> str:
    """Return a value as it is typed behind `--set field=`."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _point_names(points: Sequence[Overrides]) -> list[str]:
    """Return a directory's name for each point: learning_rate=1e-05_seed=2.

    A long name is cut, and then, as are names that would be equal, marked by a checksum of the values.
    """
    names = []
    for values in points:
        text = "_".join(f"{field.rpartition('.')[2]}={_as_text(value)}" for field, value in values.items())
        names.append(re.sub(r"[^\w.=+-]+", "-", text.replace('"', "")).strip("-.") or "unchanged")
    counts = Counter(name.casefold() for name in names)
    for index, (name, values) in enumerate(zip(names, points, strict=True)):
        if len(os.fsencode(name)) > MAX_NAME_LENGTH or counts[name.casefold()] > 1:
            content = json.dumps(values, default=str, sort_keys=True)
            checksum = hashlib.sha256(content.encode()).hexdigest()[:8]
            names[index] = f"{os.fsencode(name)[:MAX_NAME_LENGTH].decode(errors='ignore')}_{checksum}"
    return names
