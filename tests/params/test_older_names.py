"""The names of the older scripts are read where they mean the same, else answered with the new ones."""

import json
import re
from pathlib import Path

import pytest
from refusals import refused, table, with_cell, with_set

from rlnb import cli
from rlnb.configure.draft import start_draft
from rlnb.machine import probe
from rlnb.params import load_params, parse_set
from rlnb.params.loading import MODELS, list_fields, load_model_class
from rlnb.params.older_names import OLDER_NAMES, accepted_fields
from rlnb.params.sections import value_of
from rlnb.run.metrics import describe

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT.parent / "shared" / "requirements"
PAGE = (ROOT / "docs" / "from_the_scripts.md").read_text(encoding="utf-8")
KEYS = [row for row in OLDER_NAMES if row.kind == "key"]
COLUMNS = {  # of the page's tables, by the title of the first
    "key": ("older", "notebooks", "here", "answer", "note"),
    "option": ("older", "here", "answer", "note"),
    "variable": ("older", "here", "answer", "note"),
}
TITLES = {
    "configuration key": "key",
    "environment variable": "variable",
    "log or directory": "path",
    "class or function": "name",
    "setting, in the document's words": "setting",
}
HEADINGS = {
    "GRPO on code, the code game, SPIRAL, MBPP": "grpo_spiral_mbpp",
    "GPT-OSS and 2048": "gpt_oss_2048",
    "PPO on OpenSpiel": "ppo_openspiel",
}


def rows_of_the_page() -> list[tuple[str, ...]]:
    """(document, kind, cells) of each row, without the marks of code."""
    rows, document, kind = [], "", ""
    for line in PAGE.splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.strip("|").split(" | ")]
        if line.startswith("## "):
            document = HEADINGS[line.removeprefix("## ")]
        elif line.startswith("| ") and "is here" in cells:
            kind = TITLES.get(cells[0], cells[0])
        elif line.startswith("| "):
            rows.append((document, kind, *(cell.replace("nothing", "") for cell in cells)))
    return rows


def test_the_page_has_the_rows_of_the_data():
    def cells(row) -> tuple[str, ...]:
        values = row._asdict() | {"notebooks": ", ".join(row.notebooks.split())}
        columns = COLUMNS.get(row.kind, ("older", "here", "note"))
        return (row.document, row.kind, *(values[column] for column in columns))

    assert sorted(rows_of_the_page()) == sorted(map(cells, OLDER_NAMES))


@pytest.mark.parametrize("row", KEYS, ids=lambda row: f"{row.older} {row.notebooks}")
def test_what_a_key_is_here_is_a_field_or_a_section_of_its_notebooks(row):
    assert row.answer in ("accepted", "refused") and row.notebooks
    for notebook in row.notebooks.split():
        fields = list_fields(load_model_class(notebook))
        assert not row.here or row.field in fields or row.here in {field[0] for field in fields}
        assert row.here or row.note


def test_every_file_class_metric_and_setting_that_a_row_names_is_there():
    missing = []
    fields = {".".join(f) for notebook in MODELS for f in list_fields(load_model_class(notebook))}
    for row in OLDER_NAMES:
        for target in filter(None, re.split(r"; | or ", row.here)):
            file, _, name = target.partition(": ")
            if row.kind in ("file", "name") or file.startswith(("params/", "rlnb/")):
                is_there = (ROOT / file).exists()
                if is_there and name:
                    text = (ROOT / file).read_text(encoding="utf-8")
                    is_there = re.search(rf"^(class|def) {name}\b", text, re.MULTILINE) is not None
            elif row.kind == "metric":
                is_there = describe(target) is not None
            elif row.kind == "setting" or row.answer == "accepted" and row.kind == "variable":
                is_there = target in fields
            else:
                continue
            missing += [] if is_there else [(row.older, target)]
        mentioned = re.findall(r"notebooks/\w+\.ipynb|docs/\w+\.md|params/\w+/\w+\.yaml", row.here + row.note)
        missing += [(row.older, path) for path in mentioned if not (ROOT / path).exists()]
    assert missing == []


def test_the_documents_have_no_file_option_or_variable_that_the_data_lacks():
    if not REQUIREMENTS.exists():
        pytest.skip("the older scripts' documents are not at hand: ../shared/requirements is missing")
    known = " ".join(row.older for row in OLDER_NAMES)
    for document in {row.document for row in OLDER_NAMES}:
        text = (REQUIREMENTS / f"{document}.md").read_text(encoding="utf-8")
        names = re.findall(r"[\w./]+\.(?:py|sh|ya?ml|json|ipynb)\b|--\w[\w-]+|\b[A-Z]+_[A-Z_]+\b", text)
        keys = re.findall(r'^\s*"(\w+)": (?!\{)|"(\w+)": [\w"]', text, re.MULTILINE)
        names += [name for pair in keys for name in pair if name]
        assert {name for name in names if name.strip("./") not in known} == set()
        for row in OLDER_NAMES:
            if row.document == document and row.kind in ("file", "variable", "option", "name", "metric"):
                name = row.older.partition("(")[0].rstrip("/").split("/")[-1]
                assert name in text or row.older in text, row.older


@pytest.mark.parametrize("notebook", MODELS)
def test_an_accepted_key_sets_its_field_wherever_it_is_written(notebook, tmp_path):
    values = {"model.use_4bit": "false", "model.model_name": "a/b", "execution": "local_openspiel"}
    for older, field in accepted_fields(notebook).items():
        name = ".".join(older)
        text = values.get(name, "1.0e-5" if name.endswith("learning_rate") else "4")
        assignment = [f"{name}={text}", *(["model.lora_rank=8"] if name == "model.use_4bit" else [])]
        if name.endswith("batch_size"):
            assignment.append("training.num_generations=2")
        by_new_name = [assignment[0].replace(name, ".".join(field), 1), *assignment[1:]]
        expected = load_params(
            notebook, profile="default", overrides=parse_set(*by_new_name), place="--set", environ={}
        )
        params = load_params(
            notebook, profile="default", overrides=parse_set(*assignment), place="--set", environ={}
        )
        assert params == expected and params._sources[".".join(field)] == "--set"
        variable = "RLNB_" + "__".join(older).upper()
        params = load_params(notebook, profile="default", environ={variable: text})
        assert value_of(params, ".".join(field)) == value_of(expected, ".".join(field))
        path = tmp_path / "older.json"
        nested = {older[0]: {older[1]: 0}} if len(older) == 2 else {older[0]: 0}
        quoted = text if text[0].isdigit() or text == "false" else json.dumps(text)
        path.write_text(json.dumps(nested).replace(" 0", f" {quoted}"))
        params = load_params(notebook, profile=str(path), environ={})
        assert value_of(params, ".".join(field)) == value_of(expected, ".".join(field))


REFUSED = [(notebook, row) for row in KEYS if row.answer == "refused" for notebook in row.notebooks.split()]


@pytest.mark.parametrize("notebook, row", REFUSED, ids=lambda part: getattr(part, "older", part))
def test_a_refused_key_is_answered_with_the_new_name_and_the_reason(notebook, row):
    section, _, field = row.older.partition(".")
    told = refused(with_cell, {section: {field: 1} if field else 1}, notebook)
    assert told.startswith(f"parameters cell: {row.older} of the older scripts ")
    assert row.here in told and row.note in told


@pytest.mark.parametrize(
    "assignment, said",
    table("""
use_4bit=true => use_4bit is not a field; did you mean model.load_in_4bit?
r=32 => r is not a field; did you mean model.lora_rank?
training.batch_size=4 => training.batch_size is not a field; did you mean training.games_per_step?
ppo.clip=0.1 => ppo.clip of the older scripts is training.clip here; write that
ppo.unheard_of=1 => ppo is not a section; did you mean training?
model.use_4bit=true model.load_in_4bit=true => model.use_4bit is model.load_in_4bit here, which is set as
  well; keep one
training.resume=checkpoints/game_ppo_lora/checkpoint-5000 => training.resume =
  'checkpoints/game_ppo_lora/checkpoint-5000' is not a directory; write auto, latest, never, or a checkpoint's
  directory; checkpoints/game_ppo_lora/checkpoint-* of the older scripts is
  outputs/ppo_openspiel/<run>/checkpoints/checkpoint-N here
"""),
)
def test_part_of_an_older_name_and_an_older_path_lead_to_the_new_one(assignment, said):
    assert refused(with_set, *assignment.split(), notebook="ppo_openspiel") == f"--set: {said}"


def test_a_key_of_another_notebook_is_told_with_that_notebook():
    told = refused(with_set, "ppo.batch_size=4", notebook="gpt_oss_2048")
    assert told == (
        "--set: ppo.batch_size of the older scripts is training.games_per_step of ppo_openspiel "
        "(whole games of one update, an even number)"
    )


@pytest.mark.parametrize("name", ["USE_4BIT", "MODEL_USE_4BIT"])
def test_a_variable_of_an_older_name_without_its_section_leads_to_the_new_one(name):
    told = refused(load_params, "ppo_openspiel", profile="default", environ={f"RLNB_{name}": "true"})
    assert told.endswith(": sets nothing; did you mean RLNB_MODEL__LOAD_IN_4BIT?")


def test_the_yaml_of_the_documents_is_accepted_unchanged(tmp_path):
    path = tmp_path / "grpo.yaml"
    path.write_text(
        'model:\n  id: "Qwen/Qwen2.5-1.5B"\n  cache_dir: "./model_cache"\n'
        "training_args:\n  learning_rate: 0.00002\n  per_device_train_batch_size: 8\n  max_steps: 90\n"
        "  num_generations: 2\nvllm:\n  enabled: false\n"
    )
    params = load_params("grpo_code_execution", profile=str(path), environ={})
    assert (params.training.max_steps, params._sources["training.max_steps"]) == (90, f"{path}:7")


def test_a_draft_takes_an_older_name_as_the_new_one():
    draft = start_draft("ppo_openspiel", probe(ask_hub=False), profile="tiny", assignments=["lora.r=2"])
    assert draft.answers == {"model.lora_rank": 2}


@pytest.mark.parametrize(
    "text, said",
    table(r"""
{"ppo": {"batch_size": 4}} => :1: ppo.batch_size of the older scripts is training.games_per_step here (whole
  games of one update, an even number); write that
{"seed": 1, "seed": 2} => :1: seed is already set in line 1; keep one
{"model": {"use_4bit": 3}} => :1: model.load_in_4bit = 3 is not one of auto, true, false
{"seed": 1 => :1: is not JSON: expected ',' or '}', but got '<stream end>'
[1] => :1: holds no sections; write them as {"training": {...}}
"""),
)
def test_a_json_file_is_refused_with_its_name_and_line(text, said, tmp_path):
    path = tmp_path / "train_config.json"
    path.write_text(text)
    assert refused(load_params, "ppo_openspiel", profile=str(path), environ={}) == f"{path}{said}"


def test_a_json_file_may_hold_tabs_comments_and_escapes(tmp_path):
    path = tmp_path / "train_config.json"
    values = {"model": {"model_name": 'http://a\t"\\ud83d\u00e9\U0001f600/', "use_4bit": True}, "seed": 7}
    text = json.dumps(values, indent="\t").replace("true", "true  // false above 24 GiB").replace("/", "\\/")
    path.write_text("// config/train_config.json\n" + text.replace("\\/\\/ false", "// false"))
    params = load_params("ppo_openspiel", profile=str(path), environ={})
    assert (params.model.id, params.model.load_in_4bit) == (values["model"]["model_name"], True)
    assert params.seed == 7 and params._sources["seed"] == f"{path}:7"


RUN = f"run {ROOT}/notebooks/ppo_openspiel.ipynb"


@pytest.mark.parametrize(
    "command, said",
    table(f"""
{RUN} --use_4bit true => --use_4bit: is --set model.load_in_4bit=VALUE here; write that
{RUN} --batch-size=4 --lr 3 => --batch_size: is --set training.games_per_step=VALUE here; write that
{RUN} --resume_from x => --resume_from: is --set training.resume=DIR here (the same command again resumes by
  itself); write that
export --adapters x --output y => --output: is --out here (the directory of the run; the model is in its
  folder merged_16bit); write that
run train_ppo_lora.py => train_ppo_lora.py: no such notebook in HERE; train_ppo_lora.py of the older scripts
  is notebooks/ppo_openspiel.ipynb here
{RUN} --config config/env_config.json => profile 'config/env_config.json' is not a file in HERE;
  config/env_config.json of the older scripts is params/ppo_openspiel/default.yaml here (its one key is
  game.execution)
{RUN} --config x.yaml => x.yaml:1: ppo of the older scripts is training here (a section); write that
eval --checkpoint untrained --num_episodes 3 => --set: contest.num_games = 3 is refused: Input should be a
  multiple of 2
"""),
)
def test_an_older_command_line_is_refused_with_the_new_one(command, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text("ppo: 3")
    assert cli.main(command.split()) == 2
    said = said.replace("HERE", str(tmp_path))
    assert capsys.readouterr().err.replace("--batch-size:", "--batch_size:") == f"rlnb: {said}\n"


def test_an_option_that_nobody_had_is_still_unknown(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", "--unheard_of"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --unheard_of" in capsys.readouterr().err
