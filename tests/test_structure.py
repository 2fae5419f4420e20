"""The house's rules that a syntax tree can tell: who imports whom, how long things are, what is kept where.

Each check is a function of a root folder and returns what breaks it; a planted violation shows that it can.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# From top to bottom. A module imports what lies below it: nothing above, nothing beside but its own package.
FLOORS = (
    ("cli",),
    ("doctor", "headless", "wizard"),
    ("display",),
    ("papermill_engine", "training"),
    ("evaluation",),
    ("rollouts", "rewards"),
    ("policy", "games", "tasks", "sandbox", "configure"),
    ("trajectories", "advantages", "metrics", "runs", "memory_estimate"),
    ("params",),
    ("machine", "model_shape"),
    ("errors",),
)
# `rlnb doctor`, parameters that are refused, rewards in worker processes: none of them waits for torch.
LIGHT = {name for floor in FLOORS[6:] for name in floor} - {"policy"} | {"cli", *FLOORS[1]}
HEAVY = ("torch", "transformers")
LONGEST_FILE, LONGEST_FUNCTION = 400, 60
# CPU seconds of a module's import beyond those of packages without which it could not be: pydantic and YAML
# alone take 0.23 s, numpy as long.
IMPORT_SECONDS = 0.3
MODELS = "import yaml; from pydantic import BaseModel, Field, ValidationError, field_validator"
PREREQUISITES = {
    **dict.fromkeys(("params", "headless", "configure", "memory_estimate", "wizard"), MODELS),
    "advantages": "import numpy",
    "trajectories": "import numpy",
    "games": "import numpy, pyspiel",
}
MUTATING = {
    "append",
    "add",
    "update",
    "extend",
    "insert",
    "pop",
    "remove",
    "clear",
    "setdefault",
    "popitem",
    "discard",
}


def trees(root: Path, *patterns: str) -> Iterator[tuple[str, ast.Module]]:
    """(path from the root, syntax tree) of the files that match; by default those of rlnb/."""
    for pattern in patterns or ("rlnb/**/*.py",):
        for path in sorted(root.glob(pattern)):
            yield path.relative_to(root).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def modules(root: Path) -> dict[str, str]:
    """{"rlnb.tasks.prompts": its path}."""
    paths = [path.relative_to(root) for path in sorted(root.glob("rlnb/**/*.py"))]
    return {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path.as_posix() for path in paths}


def imports(root: Path) -> dict[str, set[str]]:
    """{module: modules of ours that it imports}, imports inside functions included."""
    known = modules(root)
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        graph[name] = set()
        for node in ast.walk(ast.parse((root / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names if alias.name in known}
            elif isinstance(node, ast.ImportFrom) and node.module in known:
                parts = {f"{node.module}.{alias.name}" for alias in node.names}
                graph[name] |= {part for part in parts if part in known}
                if not parts <= known.keys():
                    graph[name].add(node.module)
    return graph


def part_of(module: str) -> str:
    """The module or package directly below rlnb; "" for rlnb itself, which holds the version only."""
    return module.split(".")[1] if "." in module else ""


def floors_broken(root: Path) -> list[str]:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    graph = imports(root)
    broken = [f"{module} stands on no floor" for module in graph if part_of(module) not in {"", *floor}]
    for module, targets in graph.items():
        for target in sorted(targets):
            here, there = part_of(module), part_of(target)
            if here == there or not there or here not in floor or there not in floor:
                continue
            if floor[there] <= floor[here]:
                where = "beside" if floor[there] == floor[here] else "above"
                broken.append(f"{module} imports {target}, which stands {where} it")
            elif there == "display":
                broken.append(f"{module} imports {target}, which is for notebooks")
    return broken


def cycles(root: Path) -> list[str]:
    """Modules that reach themselves through imports."""
    graph = imports(root)
    found = []
    for module in graph:
        reached, waiting = set(), list(graph[module])
        while waiting:
            target = waiting.pop()
            if target not in reached:
                reached.add(target)
                waiting += graph[target]
        if module in reached:
            found.append(module)
    return found


def too_long(root: Path) -> list[str]:
    found = []
    for pattern in ("rlnb/**/*.py", "benchmarks/**/*.py", "tests/**/*.py"):
        for path, tree in trees(root, pattern):
            num_lines = len((root / path).read_text(encoding="utf-8").splitlines())
            if num_lines > LONGEST_FILE:
                found.append(f"{path} has {num_lines} lines")
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    if num_lines > LONGEST_FUNCTION:
                        found.append(f"{path}:{node.lineno} {node.name} has {num_lines} lines")
    return found


def asserts(root: Path) -> list[str]:
    return [
        f"{path}:{node.lineno}"
        for path, tree in trees(root, "rlnb/**/*.py", "benchmarks/**/*.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
    ]


def heavy_imports(root: Path) -> list[str]:
    """Imports of torch and transformers, wherever they stand, in modules that are to do without."""
    found = []
    for module, path in modules(root).items():
        if part_of(module) not in LIGHT:
            continue
        for node in ast.walk(ast.parse((root / path).read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [
                f"{path}:{node.lineno} imports {name}" for name in names if name.partition(".")[0] in HEAVY
            ]
    return found


def package_extras(root: Path) -> list[str]:
    """What rlnb/__init__.py holds besides its docstring and the version."""
    body = ast.parse((root / "rlnb" / "__init__.py").read_text(encoding="utf-8")).body
    extras = []
    for index, node in enumerate(body):
        is_docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        is_version = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__version__"
        if not (is_docstring or is_version):
            extras.append(ast.unparse(node))
    return extras


def module_state(root: Path) -> list[str]:
    """`global`, and constants of a module or class that a function changes."""
    found = []
    for path, tree in trees(root):
        scopes = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
        shared = {name for scope in scopes for name in mutable_names(scope)}
        functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
        for node in {inner: None for function in functions for inner in ast.walk(function)}:
            if isinstance(node, ast.Global):
                found.append(f"{path}:{node.lineno} global {', '.join(node.names)}")
            found += [
                f"{path}:{node.lineno} changes {name}" for name in changed_names(node) if name in shared
            ]
        found += [
            f"{path}: {name} is no constant" for name in sorted(shared) if not name.strip("_").isupper()
        ]
    return found


def mutable_names(scope: ast.Module | ast.ClassDef) -> Iterator[str]:
    """Names that a module or class binds to a list, dict or set."""
    for node in scope.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        value, target = node.value, node.targets[0] if isinstance(node, ast.Assign) else node.target
        is_call = isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in (
            "list", "dict", "set", "defaultdict", "Counter", "deque",
        )  # fmt: skip
        literals = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
        if (
            isinstance(target, ast.Name)
            and target.id != "__all__"
            and (is_call or isinstance(value, literals))
        ):
            yield target.id


def changed_names(node: ast.AST) -> Iterator[str]:
    """Names whose value a node changes in place: x[0] = 1, del x[0], x += 1, x.append(1), also of self."""
    if isinstance(node, ast.Assign | ast.Delete):
        yield from (
            ast.unparse(t.value).rpartition(".")[2] for t in node.targets if isinstance(t, ast.Subscript)
        )
    elif isinstance(node, ast.AugAssign):
        yield ast.unparse(node.target.value if isinstance(node.target, ast.Subscript) else node.target)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATING:
        yield ast.unparse(node.func.value).rpartition(".")[2]


def slow_or_heavy(root: Path, module: str) -> str:
    """What is wrong with a module's import in a fresh interpreter: "", its time, or what it brought along."""
    before = PREREQUISITES.get(part_of(module), "")
    code = (
        f"{before}\n"
        "import sys, time\n"
        "started = time.process_time()\n"
        f"import {module}\n"
        f"print(time.process_time() - started, *[name for name in {HEAVY} if name in sys.modules])\n"
    )
    seconds = []
    for _ in range(3):  # the best of three: the machine may be busy
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
        )
        taken, *heavy = done.stdout.split()
        if heavy:
            return f"{module} brings {' and '.join(heavy)} along"
        seconds.append(float(taken))
        if seconds[-1] < IMPORT_SECONDS:
            return ""
    return f"{module} takes {min(seconds):.2f} s of CPU time to import"


def test_modules_import_only_from_the_floors_below():
    assert floors_broken(ROOT) == []


def test_no_module_imports_itself_through_others():
    assert cycles(ROOT) == []


def test_files_and_functions_are_short_enough_to_be_read_whole():
    assert too_long(ROOT) == []


def test_what_a_user_gave_is_never_asserted():
    assert asserts(ROOT) == []


def test_the_lower_floors_name_neither_torch_nor_transformers():
    assert heavy_imports(ROOT) == []


def test_the_package_itself_holds_its_docstring_and_version_only():
    assert package_extras(ROOT) == []


def test_nothing_is_kept_in_modules_and_classes():
    assert module_state(ROOT) == []


@pytest.mark.parametrize(
    "module",
    [
        name
        for name in modules(ROOT)
        if part_of(name) in LIGHT and not name.rpartition(".")[2].startswith("_")
    ],
)
def test_a_lower_floor_is_imported_at_once_and_without_torch(module):
    assert slow_or_heavy(ROOT, module) == ""


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A small tree that keeps every rule."""
    write(tmp_path, "rlnb/__init__.py", '"""A house."""\n\n__version__ = "1"\n')
    write(tmp_path, "rlnb/errors.py", "class RlnbError(Exception):\n    pass\n")
    write(tmp_path, "rlnb/tasks/__init__.py", "from rlnb.tasks.prompts import build\n")
    write(
        tmp_path,
        "rlnb/tasks/prompts.py",
        "from rlnb.errors import RlnbError\n\nNAMES = ['a']\n\n\ndef build():\n    return NAMES\n",
    )
    for check in (floors_broken, cycles, too_long, asserts, heavy_imports, package_extras, module_state):
        assert check(tmp_path) == []
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


TASKS, ERRORS = "from rlnb.tasks import build\n", "rlnb/errors.py"
PLANTED = [
    (floors_broken, ERRORS, TASKS, "rlnb.errors imports rlnb.tasks, which stands above it"),
    (floors_broken, "rlnb/sandbox.py", TASKS, "rlnb.sandbox imports rlnb.tasks, which stands beside it"),
    (floors_broken, "rlnb/utils.py", "", "rlnb.utils stands on no floor"),
    (too_long, ERRORS, "\n" * 401, "rlnb/errors.py has 401 lines"),
    (too_long, "tests/a.py", "def f():\n" + "    print()\n" * 60, "tests/a.py:1 f has 61 lines"),
    (asserts, ERRORS, "def f(x):\n    assert x\n", "rlnb/errors.py:2"),
    (
        heavy_imports,
        ERRORS,
        "def f():\n    from torch.nn import Linear\n",
        "rlnb/errors.py:2 imports torch.nn",
    ),
    (package_extras, "rlnb/__init__.py", '"""A house."""\nimport os\n', "import os"),
    (module_state, ERRORS, "SEEN = {}\ndef f(x):\n    SEEN[x] = 1\n", "rlnb/errors.py:3 changes SEEN"),
    (module_state, ERRORS, "SEEN = []\ndef f(x):\n    SEEN.append(x)\n", "rlnb/errors.py:3 changes SEEN"),
    (
        module_state,
        ERRORS,
        "class A:\n    SEEN = 0, []\n    seen = []\n",
        "rlnb/errors.py: seen is no constant",
    ),
    (module_state, ERRORS, "n = 0\ndef f():\n    global n\n    n = 1\n", "rlnb/errors.py:3 global n"),
]


@pytest.mark.parametrize(
    ("check", "path", "text", "said"), PLANTED, ids=[f"{p[0].__name__}: {p[3]}" for p in PLANTED]
)
def test_a_planted_violation_is_found(check, path, text, said, house):
    write(house, path, text)
    assert check(house) == [said]


def test_a_planted_import_of_display_is_found(house):
    write(house, "rlnb/display/plots.py", "")
    write(house, "rlnb/doctor.py", "import rlnb.display.plots\n")
    assert floors_broken(house) == ["rlnb.doctor imports rlnb.display.plots, which is for notebooks"]


def test_a_planted_cycle_is_found(house):
    write(house, "rlnb/tasks/prompts.py", "def f():\n    from rlnb.tasks import build\n")
    assert cycles(house) == ["rlnb.tasks", "rlnb.tasks.prompts"]


def test_a_module_that_is_slow_or_brings_torch_along_is_found(house):
    write(house, "rlnb/errors.py", "import time\nwhile time.process_time() < 0.5:\n    pass\n")
    assert slow_or_heavy(house, "rlnb.errors").startswith("rlnb.errors takes ")
    write(house, "torch.py", "")
    write(house, "rlnb/errors.py", "import torch\n")
    assert slow_or_heavy(house, "rlnb.errors") == "rlnb.errors brings torch along"
