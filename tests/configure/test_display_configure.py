"""The form by its widgets' values, as a browser would set them."""

import pytest
import yaml

from rlnb.configure.draft import profile_text, start_draft
from rlnb.configure.widget import ConfigureForm, show_memory
from rlnb.errors import ParamsError
from rlnb.machine import Machine
from rlnb.params import load_params

CPU = Machine("cpu", "", None, 16.0, 2, "workstation", "unasked")
T4 = Machine("t4", "T4", (7, 5), 15.0, 8, "workstation", "unasked")


@pytest.fixture
def form(tmp_path):
    return form_of(tmp_path)


def form_of(tmp_path, *, profile="tiny", machine=CPU, **options):
    output = tmp_path / "mine.yaml"
    return ConfigureForm("ppo_openspiel", profile, output=output, machine=machine, environ={}, **options)


def fill_in(form, field, value):
    form.rows[field].entry.value = value


def test_every_field_has_a_widget_of_its_kind_with_its_value_and_its_help(form):
    draft = start_draft("ppo_openspiel", CPU, profile="tiny", environ={})
    assert list(form.rows) == [one.field for one in draft.questions() if "[" not in one.field]
    kinds = {name: type(row.entry).__name__ for name, row in form.rows.items()}
    assert kinds["model.load_in_4bit"] == "Dropdown"
    assert kinds["evaluation.enabled"] == "Checkbox"
    assert kinds["training.learning_rate"] == kinds["evaluation.opponents"] == "Text"
    assert kinds["curriculum.stages"] == "Textarea"
    assert form.rows["evaluation.opponents"].entry.value == "random, mcts:2, nash"
    assert form.rows["model.load_in_4bit"].entry.options == ("auto", "true", "false")
    help_text = form.rows["training.max_steps"].box.children[1].value
    assert "Policy updates of the whole run (at least 1)" in help_text
    # Nobody has touched it.
    assert (form.problems, form.draft.answers) == ({}, {})
    assert form.profile_text == profile_text(draft)
    assert repr(form) == "A form of all parameters: it needs a running notebook."
    assert form._repr_mimebundle_()["text/plain"] == repr(form)


def test_wrong_values_are_marked_beneath_their_fields_at_once_and_forbid_saving(form, tmp_path):
    fill_in(form, "training.max_steps", "0")
    fill_in(form, "training.clip", "0.3x")
    says = "training.clip = '0.3x' is not a number; write 0.3"
    assert set(form.problems) == {"training.clip", "training.max_steps"}
    assert form.problems["training.clip"] == says
    assert "is not a number; write 0.3" in form.rows["training.clip"].error.value
    assert form.rows["training.lam"].error.value == ""
    assert form.save_button.disabled
    with pytest.raises(ParamsError, match="write 0.3"):
        form.save()
    assert list(tmp_path.iterdir()) == []
    fill_in(form, "training.clip", "0.3")
    fill_in(form, "training.max_steps", "9")
    assert (form.problems, form.rows["training.clip"].error.value) == ({}, "")
    assert not form.save_button.disabled
    assert "was 3" in form.rows["training.max_steps"].origin.value
    fill_in(form, "training.max_steps", "3")
    assert ">tiny.yaml:" in form.rows["training.max_steps"].origin.value


def test_a_conflict_is_shown_until_either_field_is_right(form):
    fill_in(form, "model.load_in_4bit", "true")
    says = (
        "model.lora_rank = 0 trains weights that model.load_in_4bit has quantized; write 16, or false there"
    )
    assert form.problems == {"model.lora_rank": says}
    assert "has quantized" in form.summary.value
    fill_in(form, "model.lora_rank", "8")
    assert form.problems == {}
    assert (form.draft.params.model.load_in_4bit, form.draft.params.model.lora_rank) == (True, 8)


def test_a_list_is_filled_in_with_commas_and_stages_as_yaml(form):
    fill_in(form, "evaluation.opponents", "random, mcts:5")
    stages = "- {name: one, games: [kuhn_poker], threshold: 0.2}\n- {name: two, games: [nim], threshold: 0.3}"
    fill_in(form, "curriculum.stages", stages)
    assert form.problems == {}
    assert form.draft.params.evaluation.opponents == ("random", "mcts:5")
    assert [stage.name for stage in form.draft.params.curriculum.stages] == ["one", "two"]
    fill_in(form, "curriculum.stages", stages.replace("0.3", "3"))
    assert form.problems == {"curriculum.stages": "curriculum.stages[1][threshold] = 3 must be at most 1"}


def test_the_button_writes_a_profile_and_shows_the_command(form, tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("seed: 1\n")
    fill_in(form, "evaluation.opponents", "bogus")  # which a run would refuse
    form.save_button.click()
    assert "evaluation.opponents" in form.saved.value and "bogus" in form.saved.value
    fill_in(form, "evaluation.opponents", "random")
    fill_in(form, "training.max_steps", "9")
    fill_in(form, "evaluation.enabled", False)
    form.save_button.click()
    assert "exists already" in form.saved.value
    assert path.read_text() == "seed: 1\n"
    form.overwrite.value = True
    form.save_button.click()
    written = yaml.safe_load(path.read_text())
    assert (written["training"]["max_steps"], written["evaluation"]["enabled"]) == (9, False)
    assert load_params("ppo_openspiel", profile=str(path), environ={}) == form.draft.params
    assert f"--profile {path}" in form.saved.value
    assert form.command.startswith("rlnb run ")


def test_memory_and_what_this_machine_would_refuse_follow_what_is_filled_in(tmp_path):
    form = form_of(tmp_path, profile="default")  # 4 bits
    assert "this machine would refuse it" in form.summary.value
    assert not form.save_button.disabled
    form = form_of(tmp_path, profile="default", machine=T4)
    before = form.estimate().total_gib
    fill_in(form, "model.id", "Qwen/Qwen3-32B")
    assert form.estimate().total_gib > 2 * before
    assert "does not fit" in form.memory.value
    assert "then a smaller model: model.id" in form.memory.value
    table = show_memory(form.estimate())
    assert table.caption == form.estimate().lines()[0]
    assert "weights" in [row[0] for row in table.rows]


def test_answers_may_be_filled_in_to_begin_with(tmp_path):
    form = form_of(tmp_path, assignments=["training.max_steps=4", "evaluation.opponents=random"])
    assert form.rows["training.max_steps"].entry.value == "4"
    assert form.draft.changes()[0] == ("training.max_steps", 3, 4)
    with pytest.raises(ParamsError, match="^--set: training.max_step is not a field"):
        form_of(tmp_path, assignments=["training.max_step=4"])
