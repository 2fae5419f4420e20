"""What a cell's error, `params.training?` and the Tab key show in a notebook, by IPython itself."""

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell


@pytest.fixture(scope="module")
def shell() -> InteractiveShell:
    shell = InteractiveShell(colors="nocolor")
    shell.run_cell("from rlnb.params import load_params\nfrom rlnb.errors import ParamsError, see")
    shell.run_cell("params = load_params('spiral_self_play', profile='default', environ={})")
    return shell


def test_an_error_that_says_what_to_do_has_no_traceback_and_a_link_to_its_page(shell, capsys):
    error = "ParamsError('--set seed = -1: is negative; write 0' + see('out-of-memory'))"
    result = shell.run_cell(f"def refuse():\n    raise {error}\nrefuse()")
    link, message = capsys.readouterr().out.strip().splitlines()
    assert "<a href='/docs/troubleshooting.md#out-of-memory'>" in link
    assert message.startswith("ParamsError: --set seed = -1: is negative; write 0 (docs/")
    assert type(result.error_in_exec).__name__ == "ParamsError"
    shell.run_cell("def broken():\n    raise ValueError('a fault of ours')\nbroken()")
    assert "in broken()" in capsys.readouterr().out


def test_the_help_of_a_field_is_one_question_mark_away(shell):
    told = shell.object_inspect_mime("params.training.learning_rate")["text/plain"]
    assert "Docstring:       Learning rate of AdamW at the start" in told
    lines = shell.object_inspect_mime("params.training")["text/plain"].splitlines()
    value = shell.user_ns["params"].training.learning_rate
    assert f"learning_rate = {value!r}  Learning rate of AdamW at the start" in lines


def test_completion_offers_fields_and_no_methods_of_pydantic(shell):
    shell.Completer.jedi_compute_type_timeout = 60_000
    with provisionalcompleter():
        offered = {item.text for item in shell.Completer.completions("params.training.", 16)}
    assert "learning_rate" in offered
    assert not {"copy", "dict", "json", "model_dump", "from_orm"} & offered
