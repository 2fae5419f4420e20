"""The shape of rlnb/: who may import whom, what stays light, and what no module does."""

import ast
from collections import Counter
from pathlib import Path

import pytest
from waiting import run_python

ROOT = Path(__file__).parents[1]
PIPELINES = {"code_execution", "code_game", "game_2048", "ppo", "spiral"}
WINGS = {"advantages", "games", "grpo", "mbpp", "selfplay"}
# From top to bottom: a package imports what is in a lower layer or in its own, never another pipeline.
LAYERS = (
    {"cli", "doctor"},
    {"batch", "configure"},
    PIPELINES,
    WINGS,
    {"display", "evaluations", "json_records", "notebook", "results", "source_code"},
    {"policy", "run", "sandbox"},
    {"params"},
    {"machine", "statistics"},
    {"errors"},
)
LIGHT_PACKAGES = {"cli", "doctor", "errors", "games", "machine", "params", "sandbox", "statistics"}
VAGUE_NAMES = {"one", "found", "own", "asked", "number"}
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.glob("rlnb/**/*.py"))
}
TREES = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in MODULES.items()}
LIGHT_MODULES = [
    module
    for module in MODULES
    if module.split(".")[1:2] and (module.split(".")[1] in LIGHT_PACKAGES or module.endswith(".params"))
]


def imported(module: str) -> set[str]:
    """Return the modules of rlnb that `module` imports, also those imported inside functions."""
    names: set[str] = set()
    for node in ast.walk(TREES[module]):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            names |= submodules or {node.module}
    return names & MODULES.keys()


def package_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_imports_point_down_and_never_to_another_pipeline():
    layer = {package: index for index, packages in enumerate(LAYERS) for package in packages}
    wrong = []
    for module in MODULES:
        for target in imported(module):
            source, goal = package_of(module), package_of(target)
            if not source or not goal or source == goal:
                continue
            if layer[goal] < layer[source] or {source, goal} <= PIPELINES:
                wrong.append(f"{module} imports {target}")
    assert sorted(wrong) == []


def test_no_module_imports_itself_through_others():
    graph = {module: imported(module) for module in MODULES}
    for module in MODULES:
        reached: set[str] = set()
        waiting = [module]
        while waiting:
            for target in graph[waiting.pop()] - reached:
                reached.add(target)
                waiting.append(target)
        assert module not in reached


def test_parameters_and_the_light_packages_bring_no_torch():
    code = (
        f"import importlib, sys\nfor module in {[m for m in LIGHT_MODULES if '._' not in m]}:\n"
        "    importlib.import_module(module)\n"
        "    assert not {'torch', 'transformers'} & sys.modules.keys(), module\n"
    )
    assert run_python(code, cwd=ROOT).stderr == ""


@pytest.mark.parametrize("kind", [ast.Assert, ast.Global], ids=["assert", "global"])
def test_no_module_has(kind: type[ast.AST]):
    used = [
        f"{module}:{node.lineno}"
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, kind)
    ]
    assert used == []


def test_any_is_the_type_of_few_things():
    """`Any` where a library gives nothing better, and nowhere else; the pydantic classes say the rest."""
    uses = Counter(
        module
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id == "Any"
    )
    assert uses.total() <= 60, uses.most_common(10)


def test_a_name_of_a_class_means_one_thing():
    classes = Counter(
        node.name
        for module, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not module.rpartition(".")[2].startswith("_")
    )
    assert [name for name, count in classes.items() if count > 1] == []


def test_locals_are_named_for_what_they_hold():
    wrong = [
        f"{module}:{node.lineno} {node.id}"
        for module, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in VAGUE_NAMES
    ]
    assert wrong == []
