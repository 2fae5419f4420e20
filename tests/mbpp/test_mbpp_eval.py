"""The parameters of evaluations on MBPP: where problems come from, and what is refused early."""

import json
from dataclasses import replace

from plus_file import ADD
from refusals import MACHINES, refused

from rlnb.machine import recommend
from rlnb.mbpp.params import load_data
from rlnb.params import asks_network, check_machine, load_params, resolve
from rlnb.params.resolving import resolve_mbpp

CPU = MACHINES["cpu"]
PLUS = {"plus_path": __file__}


def load(notebook="mbpp_eval", environ=None, **sections):
    return load_params(notebook, profile="default", overrides=sections, environ=environ or {})


def resolved(params):
    advice = recommend(CPU, files_exist=lambda path: False, environ={}, version={}.get)
    return resolve(params, advice, environ={})


def test_a_training_is_measured_on_what_it_can_have(tmp_path):
    for sections, source in (
        ({"tasks": {"source": "mbpp"}}, "hub"),
        ({"tasks": {"source": "builtin"}}, "builtin"),
        ({"mbpp": {"source": "builtin"}}, "builtin"),
        ({"mbpp": {"path": str(tmp_path)}}, "hub"),
    ):
        assert resolved(load("grpo_code_execution", **sections)).mbpp.source == source


def test_the_problems_of_evalplus_are_those_of_its_file_with_the_assert_of_each_prompt(tmp_path):
    plus = tmp_path / "plus.jsonl"
    plus.write_text(json.dumps(ADD))
    mbpp = resolve_mbpp(load(evaluation={"plus_path": str(plus)}))
    (problem,) = load_data(mbpp, str(plus), tmp_path).split(mbpp.split)
    assert (problem.task_id, problem.tests) == (900, ("assert add(1, 2) == 3",))


def test_the_network_is_asked_for_what_has_to_be_downloaded():
    samples = {"samples_path": __file__}
    for sections, asks in (
        ({"model": {"id": "embedded"}}, True),
        ({"model": {"id": "embedded"}, "mbpp": {"source": "builtin"}}, False),
        ({"writer": samples}, True),
        ({"evaluation": PLUS, "writer": samples}, False),
    ):
        assert asks_network(load(**sections), environ={"NETRC": "/none"}) == asks


def test_mbpp_that_cannot_be_had_is_refused(tmp_path):
    params = resolved(load(model={"id": "embedded"}, tracking={"wandb": "disabled"}))
    offline, environ = replace(CPU, hub="unreachable"), {"HF_HOME": str(tmp_path)}
    assert "mbpp.source = 'hub' is not in" in refused(check_machine, params, offline, environ=environ)
    disabled = {"mbpp": {"enabled": False, "source": "hub"}, "tasks": {"source": "builtin"}}
    params = load("grpo_code_execution", **disabled, model={"id": "embedded"}, tracking={"wandb": "disabled"})
    check_machine(resolved(params), offline, environ=environ)
