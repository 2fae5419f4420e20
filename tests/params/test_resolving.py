"""What "auto" becomes on a machine, and what a machine cannot do."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from plus_file import ADD
from refusals import MACHINES, refused, with_cell

from rlnb.code_execution.params import GrpoCodeExecutionParams
from rlnb.machine import Machine, recommend
from rlnb.mbpp.params import load_data
from rlnb.params import asks_network, check_machine, describe_params, load_params, parse_set, resolve
from rlnb.params.bases import is_same_model, read_base
from rlnb.params.model_cache import MBPP_REVISION, MBPP_SPLITS, find_missing
from rlnb.params.resolving import has_wandb_key, resolve_mbpp

CPU, V100, A100 = MACHINES["cpu"], MACHINES["v100"], MACHINES["a100"]


def recommended(machine: Machine):
    return recommend(machine, files_exist=lambda path: False, environ={}, version={}.get)


@pytest.fixture
def no_login(tmp_path: Path) -> dict[str, str]:
    """An environment in which nobody is logged in to W&B."""
    return {"NETRC": str(tmp_path / "netrc")}


def test_every_auto_becomes_what_is_recommended(no_login):
    resolved = resolve(GrpoCodeExecutionParams(), recommended(V100), environ=no_login)
    model = resolved.model
    assert (model.id, model.dtype) == ("Qwen/Qwen2.5-3B", "float16")
    assert (model.engine, model.load_in_4bit, model.offload_embedding) == ("transformers", False, False)
    assert resolved.training.gradient_checkpointing is True
    assert resolved.tracking.wandb == "disabled"
    # The directory of the run decides it.
    assert [row.field for row in describe_params(resolved) if row.value == "'auto'"] == ["training.resume"]


def test_all_weights_are_trained_in_float32(no_login):
    """GradScaler takes no gradients of float16, bfloat16 rounds updates away; adapters are float32."""
    dtypes = {}
    for machine, lora_rank in ((V100, 0), (V100, 16), (A100, 0)):
        overrides = {"model": {"lora_rank": lora_rank}}
        params = load_params("spiral_self_play", profile="default", overrides=overrides, environ={})
        resolved = resolve(params, recommended(machine), environ=no_login)
        dtypes[machine.name, lora_rank] = resolved.model.dtype
    assert dtypes == {("v100", 0): "float32", ("v100", 16): "float16", ("a100", 0): "float32"}


def test_weights_that_are_all_trained_are_not_quantized(no_login):
    small = replace(A100, name="ada", capability=(8, 9), memory_gib=8188 / 1024)
    advice = recommend(small, files_exist=lambda _: False, environ={}, version={"bitsandbytes": "0.50"}.get)
    for model, is_quantized in (({"lora_rank": 0}, False), ({"lora_rank": 16}, True)):
        overrides = {"model": model}
        params = load_params("spiral_self_play", profile="default", overrides=overrides, environ={})
        assert resolve(params, advice, environ=no_login).model.load_in_4bit is is_quantized


def test_a_value_that_was_given_stays(no_login):
    given = {"model": {"id": "me/mine", "dtype": "float32"}, "training": {"gradient_checkpointing": False}}
    params = with_cell(given)
    before = describe_params(params)
    resolved = resolve(params, recommended(A100), environ=no_login)
    assert describe_params(params) == before
    assert (resolved.model.id, resolved.model.dtype) == ("me/mine", "float32")
    assert resolved.training.gradient_checkpointing is False
    sources = {row.field: row.source for row in describe_params(resolved)}
    assert (sources["model.dtype"], sources["model.engine"]) == ("parameters cell", "auto")


@pytest.mark.parametrize(
    ("environ", "hub", "mode"),
    [
        ({}, "reachable", "disabled"),
        ({"WANDB_API_KEY": "k"}, "reachable", "online"),
        ({"WANDB_API_KEY": "k"}, "unreachable", "disabled"),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "offline"}, "reachable", "offline"),
    ],
)
def test_wandb_is_online_where_there_is_a_key_and_a_network(no_login, environ, hub, mode):
    chosen = recommended(replace(A100, hub=hub))
    params = GrpoCodeExecutionParams()
    assert resolve(params, chosen, environ={**no_login, **environ}).tracking.wandb == mode
    netrc = Path(no_login["NETRC"])  # a login counts as a key
    netrc.write_text("machine api.wandb.ai login user password k\n")
    netrc.chmod(0o600)
    assert resolve(params, recommended(A100), environ=no_login).tracking.wandb == "online"


@pytest.mark.parametrize(
    ("machine", "given", "field", "remedy"),
    [
        ("cpu", {"model": {"dtype": "float16"}}, "model.dtype", "write float32"),
        ("cpu", {"model": {"engine": "unsloth"}}, "model.engine", "write transformers"),
        ("gb10", {"vllm": {"enabled": True}, "model": {"engine": "unsloth"}}, "vllm.enabled", "write false"),
        ("a100", {"vllm": {"enabled": True}}, "vllm.enabled", "./setup.sh vllm"),
        ("a100", {"vllm": {"enabled": True}, "model": {"load_in_4bit": True}}, "vllm.enabled", "4 bits"),
        ("a100", {"model": {"engine": "unsloth"}}, "model.engine", "./setup.sh cuda"),
        ("cpu", {"vllm": {"enabled": True}}, "vllm.enabled", "write false"),
        ("cpu", {"training": {"optim": "adamw_8bit"}}, "training.optim", "write adamw_torch_fused"),
    ],
)
def test_what_a_machine_cannot_do_is_refused_with_the_remedy(no_login, machine, given, field, remedy):
    told = refused(check_machine, GrpoCodeExecutionParams(**given), MACHINES[machine], environ=no_login)
    assert any(line.startswith(f"default: {field} = ") and remedy in line for line in told.splitlines())


def test_what_is_recommended_is_never_refused(no_login):
    for machine in MACHINES.values():
        resolved = resolve(GrpoCodeExecutionParams(), recommended(machine), environ=no_login)
        check_machine(resolved, machine, environ=no_login)


@pytest.mark.parametrize(
    ("given", "key", "asks"),
    [
        ({}, "", False),
        ({}, "k", True),
        ({"tracking": {"wandb": "offline"}}, "k", False),
        ({"model": {"id": "me/mine"}}, "", True),
        ({"tasks": {"source": "mbpp"}}, "", True),
        ({"tasks": {"source": "mbpp"}, "mbpp": {"path": "."}}, "", False),
    ],
)
def test_the_network_is_asked_for_only_where_a_run_may_need_it(no_login, given, key, asks):
    params = GrpoCodeExecutionParams(**{"model": {"id": "embedded"}, "tasks": {"source": "builtin"}} | given)
    assert asks_network(params, environ=no_login | {"WANDB_API_KEY": key}) is asks


def test_a_training_is_measured_on_the_mbpp_it_can_have(no_login, tmp_path):
    for sections, source in (
        ({"tasks": {"source": "mbpp"}}, "hub"),
        ({"tasks": {"source": "builtin"}}, "builtin"),
        ({"mbpp": {"source": "builtin"}}, "builtin"),
        ({"mbpp": {"path": str(tmp_path)}}, "hub"),
    ):
        assert resolve(with_cell(sections), recommended(CPU), environ=no_login).mbpp.source == source


def test_the_problems_of_evalplus_are_those_of_its_file_with_the_assert_of_each_prompt(write_lines, tmp_path):
    plus = write_lines(ADD)
    mbpp = resolve_mbpp(with_cell({"evaluation": {"plus_path": plus}}, "mbpp_eval"))
    (problem,) = load_data(mbpp, plus, tmp_path).split(mbpp.split)
    assert (problem.task_id, problem.tests) == (900, ("assert add(1, 2) == 3",))


def test_an_evaluation_on_mbpp_asks_the_network_for_what_has_to_be_downloaded(no_login):
    samples = {"samples_path": __file__}
    for sections, asks in (
        ({"model": {"id": "embedded"}}, True),
        ({"model": {"id": "embedded"}, "mbpp": {"source": "builtin"}}, False),
        ({"writer": samples}, True),
        ({"evaluation": {"plus_path": __file__}, "writer": samples}, False),
    ):
        assert asks_network(with_cell(sections, "mbpp_eval"), environ=no_login) == asks


def test_mbpp_that_cannot_be_had_is_refused(tmp_path):
    offline, environ = replace(CPU, hub="unreachable"), {"HF_HOME": str(tmp_path)}
    given = {"model": {"id": "embedded"}, "tracking": {"wandb": "disabled"}}
    params = resolve(with_cell(given, "mbpp_eval"), recommended(CPU), environ={})
    assert "mbpp.source = 'hub' is not in" in refused(check_machine, params, offline, environ=environ)
    given |= {"mbpp": {"enabled": False, "source": "hub"}, "tasks": {"source": "builtin"}}
    check_machine(resolve(with_cell(given), recommended(CPU), environ={}), offline, environ=environ)


def test_what_four_ranks_cannot_share_is_refused():
    for assignments in (["training.games_per_step=6"], ["training.games_per_step=8", "advantage.kind=group"]):
        params = load_params(
            "spiral_self_play", profile="tiny", overrides=parse_set(*assignments), environ={}
        )
        told = refused(check_machine, params, CPU, environ={"WORLD_SIZE": "4"})
        assert told.startswith("parameters cell: training.games_per_step = ") and "a multiple of" in told


def test_what_would_have_to_be_downloaded_is_refused_offline(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    params = with_cell({"model": {"id": "me/mine", "cache_dir": "cache"}, "tasks": {"source": "mbpp"}})
    offline = replace(CPU, hub="unreachable")
    check_machine(params, CPU)
    told = refused(check_machine, params, offline).splitlines()
    assert [line.split(" = ")[0] for line in told] == [
        "parameters cell: model.id", "parameters cell: tasks.source"
    ]  # fmt: skip
    assert all("rlnb prefetch" in line for line in told)
    cache("models--me--mine", "config.json", "tokenizer.json", "model.safetensors")
    files = [f"full/{split}-0.parquet" for split in MBPP_SPLITS]
    cache("datasets--google-research-datasets--mbpp", *files, revision="another")
    assert refused(check_machine, params, offline).startswith("parameters cell: tasks.source")
    cache("datasets--google-research-datasets--mbpp", *files, revision=MBPP_REVISION)
    check_machine(params, offline)


def test_the_model_that_adapters_are_merged_into_is_needed_offline_as_well(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = {"id": "me/mine-unsloth-bnb-4bit", "cache_dir": "cache", "load_in_4bit": True}

    def told(*formats):
        params = load_params(
            "gpt_oss_2048", profile="tiny", environ={},
            overrides={"model": model, "save": {"formats": list(formats)}},
        )  # fmt: skip
        return refused(check_machine, params, replace(A100, hub="offline"))

    assert "save.formats" not in told("lora")
    assert "save.formats = ['merged_16bit'] needs me/mine, which lacks" in told("merged_16bit")


def test_unsloth_loads_no_gpt_oss_in_4_bits_that_it_would_misread(tmp_path):
    """Of other files it makes up the experts and the routers, and trains."""
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "model.safetensors").touch()

    def told(method):
        config = {"model_type": "gpt_oss", "quantization_config": {"quant_method": method}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        params = with_cell({"model": {"id": str(tmp_path), "engine": "unsloth", "load_in_4bit": True}})
        return [line for line in refused(check_machine, params, CPU).splitlines() if "gpt-oss" in line]

    assert told("bitsandbytes") == []
    for method in ("", "mxfp4"):
        (line,) = told(method)
        assert line.startswith("parameters cell: model.load_in_4bit = true ") and "model.id = " in line


def cache(folder: str, *files: str, revision: str = "c0ffee") -> Path:
    """Write files as huggingface_hub's cache has them; return the snapshot."""
    snapshot = Path("cache", folder, "snapshots", revision)
    for name in files:
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_text("{}")
    (snapshot.parents[1] / "refs").mkdir(exist_ok=True)
    (snapshot.parents[1] / "refs" / "main").write_text(revision)
    return snapshot


def test_a_model_whose_download_was_cut_off_lacks_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_missing("cache", "me/mine") == ["all files"]
    snapshot = cache("models--me--mine", "config.json", "tokenizer.json", "model-00001-of-00002.safetensors")
    assert find_missing("cache", "me/mine") == ["the index of its weights"]
    index = {"weight_map": {"one": "model-00001-of-00002.safetensors", "two": "b.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    assert find_missing("cache", "me/mine") == ["b.safetensors"]
    (snapshot / "b.safetensors").write_text("{}")
    assert find_missing("cache", "me/mine") == []
    (snapshot / "tokenizer.json").unlink()
    assert find_missing("cache", "me/mine") == ["a tokenizer"]


def test_adapters_fit_any_copy_of_their_model_and_no_other():
    for copy in ("unsloth/gpt-oss-20b-unsloth-bnb-4bit", "openai/gpt-oss-20b", "cache/gpt-oss-20b"):
        assert is_same_model(copy, "unsloth/gpt-oss-20b")
    assert not is_same_model("unsloth/gpt-oss-120b-unsloth-bnb-4bit", "unsloth/gpt-oss-20b")


def test_a_netrc_that_is_not_text_holds_no_key(tmp_path):
    (tmp_path / "netrc").write_bytes("machine x login a password ä\n".encode("latin-1"))
    assert not has_wandb_key({"NETRC": str(tmp_path / "netrc")})


@pytest.mark.parametrize("file", ["base_model.json", "adapter_config.json"])
def test_adapters_that_cannot_be_read_are_refused(file, tmp_path, monkeypatch):
    (tmp_path / file).write_text("{}")
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=PermissionError(13, "denied")))
    assert file in refused(read_base, tmp_path)
