"""What the source of a library defines, read from its syntax trees: nothing of it is imported or run."""

import ast
import importlib.util
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

DEFINITION = re.compile(r"^(?:class|def) (\w+)|^(\w+) = [A-Z]\w+$", re.MULTILINE)
DOCUMENTED = re.compile(r"^\s*(\w+) \(`", re.MULTILINE)  # "    cache_dir (`str`, *optional*):"


def installed_folder(library: str) -> Path | None:
    """The folder of an installed package; looking for it imports nothing."""
    spec = importlib.util.find_spec(library)
    return Path(spec.submodule_search_locations[0]) if spec and spec.submodule_search_locations else None


class LibrarySources:
    """Classes and functions of some packages by name. folders: {"trl": where it lies}."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders = folders
        self._files: dict[str, dict[str, list[Path]]] = {}
        self._trees: dict[Path, ast.Module] = {}

    def find(self, library: str, name: str) -> ast.ClassDef | ast.FunctionDef | None:
        """The definition of a name at the top level of some file; of several, that of the shallowest file.

        `Old = New` is followed. transformers' dummy_*.py are left out: they stand for missing packages.
        """
        if library not in self._files:
            self._files[library] = self._index(library)
        for path in self._files[library].get(name, [])[:1]:
            for node in self._tree(path).body:
                if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
                    return node
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                    return self.find(library, ast.unparse(node.value))
        return None

    def classes(self, library: str, name: str) -> Iterator[ast.ClassDef]:
        """A class and its bases, as far as they lie in these packages."""
        node = self.find(library, name)
        if not isinstance(node, ast.ClassDef):
            return
        yield node
        for base in node.bases:
            base_name = ast.unparse(base).rpartition(".")[2]
            for home in [library, *(other for other in self.folders if other != library)]:
                if base_name != name and self.find(home, base_name):
                    yield from self.classes(home, base_name)
                    break

    def members(self, library: str, name: str) -> set[str]:
        """Methods, fields and attributes (`self.x = ...`) of a class and its bases."""
        found: set[str] = set()
        for node in ast.walk(ast.Module(list(self.classes(library, name)), [])):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                found.add(node.attr)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(node.target.id)
        return found

    def keywords(self, library: str, name: str) -> set[str] | None:
        """What "GRPOConfig" or "AutoTokenizer.from_pretrained" takes by name; None where there is no such.

        Of a function that takes **kwargs: also what it reads from them, what it documents, and what the same
        method of the base classes takes.
        """
        owner, _, method = name.partition(".")
        node = self.find(library, owner)
        if node is None or isinstance(node, ast.FunctionDef):
            return None if node is None or method else accepted(node)[0]
        keywords: set[str] = set()
        known = False
        for part in self.classes(library, owner):
            function = next(
                (f for f in part.body if isinstance(f, ast.FunctionDef) and f.name == (method or "__init__")),
                None,
            )
            if function is None:
                if not method:
                    keywords |= fields(part)
                    known = True
                continue
            known = True
            names, is_open = accepted(function)
            keywords |= names
            if not is_open:
                break
            keywords |= documented(part) | texts(part.body, ast.Assign)
        return keywords if known else None

    def _index(self, library: str) -> dict[str, list[Path]]:
        files: dict[str, list[Path]] = {}
        paths = [path for path in self.folders[library].rglob("*.py") if not path.name.startswith("dummy_")]
        for path in sorted(
            paths, key=lambda path: (len(path.parts), "experimental" in path.parts, str(path))
        ):
            for found in DEFINITION.finditer(path.read_text(encoding="utf-8", errors="replace")):
                files.setdefault(found[1] or found[2], []).append(path)
        return files

    def _tree(self, path: Path) -> ast.Module:
        if path not in self._trees:
            self._trees[path] = ast.parse(path.read_text(encoding="utf-8"))
        return self._trees[path]


def accepted(function: ast.FunctionDef) -> tuple[set[str], bool]:
    """The names that a function takes, and whether it takes more of them as **kwargs."""
    arguments = function.args
    names = {argument.arg for argument in [*arguments.args, *arguments.kwonlyargs]}
    if arguments.kwarg is None:
        return names, False
    return names | texts(function.body, ast.stmt) | documented(function), True


def fields(node: ast.ClassDef) -> set[str]:
    """The fields of a dataclass."""
    return {n.target.id for n in node.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}


def documented(node: ast.ClassDef | ast.FunctionDef) -> set[str]:
    return set(DOCUMENTED.findall(ast.get_docstring(node, clean=False) or ""))


def texts(body: Iterable[ast.stmt], kind: type[ast.stmt]) -> set[str]:
    """The texts in statements of a kind that look like names, as "dtype" in `kwargs.pop("dtype")`."""
    nodes = (inner for node in body if isinstance(node, kind) for inner in ast.walk(node))
    return {
        n.value
        for n in nodes
        if isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value.isidentifier()
    }
