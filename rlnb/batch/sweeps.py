"""Sweeps: a grid or a list of parameters, times seeds, as points that each become a run (docs/many_runs.md).

All points are checked before one is started. The folder of a sweep holds points.json and one directory of a
run for each point. Points count from 0, as the tasks of a SLURM array do.
"""

import hashlib
import itertools
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from rlnb.errors import ParamsError
from rlnb.machine import probe, recommend
from rlnb.params import load_dotenv, load_params, parse_set
from rlnb.params.loading import PROFILE_ENDINGS, choose_profile
from rlnb.params.reading import NUMBER_WITHOUT_DOT, parse_yaml
from rlnb.params.sections import NotebookParams
from rlnb.run.directory import POINTS_FILE, write_text
from rlnb.run.headless import check_same_run, make_directory, read_parameter_names

MAX_POINTS = 1000  # SLURM's usual MaxArraySize is 1001
MAX_NAME_LENGTH = 100  # characters of a point's name, a directory
PROGRESS = 100  # points that are checked between two lines about it


class Point(BaseModel, frozen=True):
    """One run of a sweep. name: its directory; overrides: {"training.learning_rate": 1e-05, "seed": 2}."""

    name: str
    overrides: dict[str, object]

    def assignments(self) -> list[str]:
        """Return the overrides as the values of --set."""
        return [f"{name}={_as_text(value)}" for name, value in self.overrides.items()]


class Sweep(BaseModel, frozen=True):
    """The folder of a sweep, and what its points.json says.

    points: all that were ever part of it. params: of those that the present command is about, by their
    indices in points; {} where none has been checked.
    """

    notebook: Path
    profile: str
    points: tuple[Point, ...]
    directory: Path = Field(exclude=True)
    params: dict[int, NotebookParams] = Field(default={}, exclude=True)

    def run_directory(self, index: int) -> Path:
        return self.directory / self.points[index].name

    def run_arguments(self, index: int) -> list[str]:
        """Return the arguments of `rlnb` that run a point, or go on with it."""
        arguments = ["run", str(self.notebook), "--profile", self.profile]
        arguments += ["--out", str(self.run_directory(index))]
        for assignment in self.points[index].assignments():
            arguments += ["--set", assignment]
        return arguments


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
    combinations, common = _read_sweep_file(sweep) if sweep is not None else ([{}], {})
    if seeds is not None:
        numbers = _read_seeds(seeds)
        if any("seed" in values for values in [common, *combinations]):
            raise ParamsError(f"{sweep}: sets seed, and so does --seeds; keep one")
        _check_size(len(combinations) * len(numbers), place=str(sweep or "--seeds"))
        combinations = [{**values, "seed": seed} for values in combinations for seed in numbers]
    parse_set(*assignments)  # refuses what is not an assignment
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        if any(name.strip() in values for values in combinations):
            raise ParamsError(f"--set {assignment}: the points set {name.strip()} as well; keep one")
        common[name.strip()] = text
    names = _point_names(combinations)
    return [
        Point(name=name, overrides={**common, **values})
        for name, values in zip(names, combinations, strict=True)
    ]


def prepare_sweep(
    notebook: Path,
    *,
    profile: str | None,
    sweep: Path | None,
    seeds: str | None,
    assignments: Sequence[str] = (),
    out: Path | None = None,
) -> Sweep:
    """Check all points, and return the sweep; `write_sweep` writes its points.json.

    profile: None is what suits this machine. assignments: of --set, for all points. out: None is
    outputs/<notebook>/<sweep>-<profile>, <sweep> being the name of the file, or `seeds`. A folder that was
    prepared before keeps its points, and new ones are added behind them; points that were started already may
    change only what `rlnb run` lets them. Raises ParamsError with every problem found, and starts nothing.
    """
    load_dotenv(Path.cwd())
    read_parameter_names(notebook)
    points = load_points(sweep, seeds=seeds, assignments=assignments)
    if profile in (None, "auto"):
        profile = choose_profile(notebook.stem, recommend(probe(ask_hub=False)).profile)
    if profile.endswith(PROFILE_ENDINGS):
        profile = str(Path(profile).absolute())
    folder_name = f"{sweep.stem if sweep else 'seeds'}-{Path(profile).stem}"
    directory = out or Path("outputs", notebook.stem, folder_name)
    if (directory / "params.yaml").exists():
        raise ParamsError(f"--out {directory}: is the directory of a run; name another for the sweep")
    made = Sweep(notebook=notebook.absolute(), profile=profile, points=tuple(points), directory=directory)
    place = str(sweep or f"--seeds {seeds}") + (" or --set" if assignments else "")
    params = _check_points(made, place=place)
    if not (directory / POINTS_FILE).exists():
        return made.model_copy(update={"params": params})
    return _join(read_sweep(directory), made, params)


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


def read_point(directory: Path, index: int) -> list[str]:
    """Return the arguments of `rlnb` for one point of a prepared folder."""
    sweep = read_sweep(directory)
    if not 0 <= index < len(sweep.points):
        raise ParamsError(
            f"--point {index}: {directory / POINTS_FILE} has the points 0 to {len(sweep.points) - 1}"
        )
    return sweep.run_arguments(index)


def _check_points(sweep: Sweep, *, place: str) -> dict[int, NotebookParams]:
    """Return the parameters of the points. Raises ParamsError with the problems of all of them.

    place: where the values come from, for messages. Two points with equal parameters are a problem.
    """
    params: dict[int, NotebookParams] = {}
    problems: dict[str, list[int]] = {}
    indices: dict[str, int] = {}
    for index, point in enumerate(sweep.points):
        if index % PROGRESS == 0 and index > 0:
            print(f"{index} of {len(sweep.points)} points checked", file=sys.stderr, flush=True)
        if "output_dir" in point.overrides:
            problems.setdefault(f"{place}: output_dir is set by --out; remove it", []).append(index)
            continue
        overrides = parse_set(*point.assignments())
        try:
            params[index] = load_params(
                sweep.notebook.stem, profile=sweep.profile, overrides=overrides, place=place
            )
        except ParamsError as error:
            for line in str(error).splitlines():
                problems.setdefault(line, []).append(index)
            continue
        first = indices.setdefault(params[index].model_dump_json(), index)
        if first != index:
            line = f"{place}: is the same run as point {first} ({sweep.points[first].name}); keep one"
            problems.setdefault(line, []).append(index)
    lines = [
        f"{line} (point {where[0]}, {sweep.points[where[0]].name}"
        + (f", and {len(where) - 1} more)" if len(where) > 1 else ")")
        for line, where in problems.items()
    ]
    if lines:
        raise ParamsError("\n".join(lines))
    return params


def _join(before: Sweep, now: Sweep, params: Mapping[int, NotebookParams]) -> Sweep:
    """Return the sweep of a folder that was prepared before, with its new points at the end.

    A point with the overrides of an old one is that one, even where it would be named otherwise now.
    """
    path = before.directory / POINTS_FILE
    for name, old, new in (
        ("notebook", before.notebook.name, now.notebook.name),
        ("profile", before.profile, now.profile),
    ):
        if old != new:
            raise ParamsError(f"{path}: was made with {name} {old}, not {new}. Give another --out.")
    names = {frozenset(point.assignments()): point.name for point in before.points}
    points = {point.name: point for point in before.points}
    joined: dict[int, NotebookParams] = {}
    for index, point in enumerate(now.points):
        name = names.get(frozenset(point.assignments()), point.name)
        check_same_run(now.notebook, before.directory / name, params[index])
        points[name] = point.model_copy(update={"name": name})
        joined[list(points).index(name)] = params[index]
    return now.model_copy(update={"points": tuple(points.values()), "params": joined})


def write_sweep(sweep: Sweep) -> None:
    """Write points.json. The caller has locked the folder.

    Raises ParamsError where it has got other points since the sweep was prepared: what runs or waits there
    reads its points by their places in that file.
    """
    path = sweep.directory / POINTS_FILE
    if path.exists():
        names = [point.name for point in read_sweep(sweep.directory).points]
        if names != [point.name for point in sweep.points[: len(names)]]:
            raise ParamsError(f"{path}: another command has changed it; run this one again")
    make_directory(sweep.directory)
    write_text(path, sweep.model_dump_json(indent=1) + "\n")


def _read_seeds(text: str) -> list[int]:
    """Return the seeds of "1-5" or "1,3,7"."""
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,10})(?:-(\d{1,10}))?\s*", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ParamsError(f"--seeds {text}: {part!r} is not a seed or a range; write 1-5, or 1,3,7")
        _check_size(last - first + 1, place="--seeds")
        seeds += range(first, last + 1)
    if repeated := [seed for seed, count in Counter(seeds).items() if count > 1]:
        raise ParamsError(f"--seeds {text}: names seed {repeated[0]} twice; name each once")
    return seeds


def _check_size(num_points: int, *, place: str) -> None:
    if num_points > MAX_POINTS:
        raise ParamsError(f"{place}: makes {num_points} points; at most {MAX_POINTS}, so split it")


def flatten(content: Mapping[object, object]) -> dict[str, object]:
    """Return {"section.field": value} of a mapping whose sections may be written out."""
    flat: dict[str, object] = {}
    for name, value in content.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{field}": inner for field, inner in value.items()}
        else:
            flat[str(name)] = value
    return flat


def _read_fields(content: object) -> object:
    """Return a mapping of a sweep's file with its fields by their full names; 1e-5 is a number."""
    if not isinstance(content, Mapping):
        return content  # pydantic refuses it
    return {name: _as_number(value) for name, value in flatten(content).items()}


class SweepFile(BaseModel, extra="forbid"):
    """A file of params/sweeps/: points as a grid or as a list, and values that all of them share."""

    grid: Annotated[
        dict[str, Annotated[list[object], Field(min_length=1)]], BeforeValidator(_read_fields)
    ] = {}
    points: list[Annotated[dict[str, object], BeforeValidator(_read_fields)]] = Field(
        default=[], alias="list"
    )
    common: Annotated[dict[str, object], BeforeValidator(_read_fields)] = Field(default={}, alias="set")


def _read_sweep_file(path: Path) -> tuple[list[dict[str, object]], dict[str, object]]:
    """Return the values of each point, and those of all points."""
    try:
        file = SweepFile.model_validate(parse_yaml(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        problems = [f"{path}: {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        raise ParamsError("\n".join(problems)) from None
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise ParamsError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if bool(file.grid) == bool(file.points):
        raise ParamsError(
            f"{path}: needs either grid: or list:, {'not both' if file.grid else 'has neither'}"
        )
    _check_size(len(file.points) or math.prod(map(len, file.grid.values())), place=str(path))
    combinations = itertools.product(*file.grid.values())
    points = file.points or [dict(zip(file.grid, values, strict=True)) for values in combinations]
    if twice := sorted(file.common.keys() & {name for values in points for name in values}):
        raise ParamsError(f"{path}: {twice[0]} is under set: and in the points; keep one")
    return points, file.common


def _as_number(value: object) -> object:
    """Return 1e-5, which YAML 1.1 takes for text, as a number, in lists as well."""
    if isinstance(value, list):
        return [_as_number(item) for item in value]
    return float(value) if isinstance(value, str) and NUMBER_WITHOUT_DOT.fullmatch(value) else value


def _as_text(value: object) -> str:
    """Return a value as it is typed behind `--set field=`."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _point_names(combinations: Sequence[Mapping[str, object]]) -> list[str]:
    """Return a directory's name for each point: learning_rate=1e-05_seed=2.

    A field goes by its last part where that is clear. A long name is cut, and then, as are names that would
    be equal, marked by a checksum of the values.
    """
    fields = dict.fromkeys(field for values in combinations for field in values)
    last_parts = Counter(field.rpartition(".")[2] for field in fields)
    short = {f: f.rpartition(".")[2] if last_parts[f.rpartition(".")[2]] == 1 else f for f in fields}
    names = []
    for values in combinations:
        text = "_".join(f"{short[field]}={_as_text(value)}" for field, value in values.items())
        names.append(re.sub(r"[^\w.=+-]+", "-", text.replace('"', "")).strip("-.") or "unchanged")
    counts = Counter(name.casefold() for name in names)
    for index, (name, values) in enumerate(zip(names, combinations, strict=True)):
        if len(name) > MAX_NAME_LENGTH or counts[name.casefold()] > 1:
            content = json.dumps(values, default=str, sort_keys=True)
            checksum = hashlib.sha256(content.encode()).hexdigest()[:8]
            names[index] = f"{name[:MAX_NAME_LENGTH]}_{checksum}"
    return names
