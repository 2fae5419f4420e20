"""What help() and Shift+Tab show of the package holds no variable of the environment, where keys are."""

import importlib
import inspect
import pkgutil

import rlnb

KEY = "made-up-key-5f1c"


def test_no_signature_shows_the_environment(monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    shown = []
    for found in pkgutil.walk_packages(rlnb.__path__, "rlnb."):
        if found.name.rpartition(".")[2].startswith("_"):
            continue  # programs of the sandbox, which run where they are imported
        module = importlib.import_module(found.name)
        ours = [each for each in vars(module).values() if getattr(each, "__module__", "") == found.name]
        members = [member for each in ours if inspect.isclass(each) for member in vars(each).values()]
        for each in filter(callable, [*ours, *members]):
            try:
                signature = str(inspect.signature(each))
            except (ValueError, TypeError):
                continue
            if KEY in signature:
                shown.append(f"{found.name}.{each.__qualname__}")
    assert shown == []
