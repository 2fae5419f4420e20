"""What training on 2048 strategies hangs on TRL: its prompts, and what is watched besides."""

from datasets import Dataset
from trl import GRPOConfig

from rlnb.errors import ParamsError
from rlnb.evaluation.strategies import strategy_prompt
from rlnb.games.board2048 import BoardKind
from rlnb.params.gpt_oss_2048 import GptOss2048Params
from rlnb.policy import Policy
from rlnb.rewards.board_secret import BoardSecret
from rlnb.training.grpo import prompt_order, prompts_of


def strategy_dataset(params: GptOss2048Params, policy: Policy, config: GRPOConfig) -> Dataset:
    """The prompts of the whole run in order, each with its board and the seeds of its games.

    Every prompt has new boards, the same for all completions of its group and in every attempt of the run:
    their seeds come from `BoardSecret.of_run`. Raises ParamsError as that does, and where a prompt and its
    completion would not fit into `model.max_seq_length`.
    """
    rows = []
    for name in params.board.kinds:
        for wording in range(params.prompt.num_wordings):
            prompt = strategy_prompt(params, BoardKind.parse(name), wording, policy)
            rows.append({"prompt": prompt.text, "prefix": prompt.prefix, "board": name})
    longest = max(len(policy.tokenizer(row["prompt"])["input_ids"]) for row in rows)
    needed = longest + params.training.max_completion_length
    if needed > params.model.max_seq_length:
        raise ParamsError(
            f"model.max_seq_length = {params.model.max_seq_length} does not hold a prompt of {longest} "
            f"tokens and training.max_completion_length = {params.training.max_completion_length}; "
            f"write at least {needed}"
        )
    order = prompt_order(len(rows), prompts_of(config), seed=config.seed)
    secret = BoardSecret.of_run(params)
    seeds = [
        secret.seeds("training", config.seed, position, num_boards=params.reward.num_boards)
        for position in range(len(order))
    ]
    return Dataset.from_list([rows[i] | {"seeds": own} for i, own in zip(order, seeds, strict=True)])
