"""The zygote's scripts with one line replaced: what another kernel, or a mistake, would make of them."""

from pathlib import Path

from rlnb.sandbox import zygotes


def patch_script(monkeypatch, folder, name, old, new):
    """Let zygotes run copies of their scripts in `folder`, of which `name` holds `new` in place of `old`."""
    for script in Path(zygotes.__file__).parent.glob("_*.py"):
        (folder / script.name).write_text(script.read_text())
    text = (folder / name).read_text()
    assert text.count(old) == 1
    (folder / name).write_text(text.replace(old, new))
    monkeypatch.setattr(zygotes, "SCRIPT", str(folder / "_zygote.py"))
