"""The data set that GRPO trains on: prompts for strategies, each with the boards that its group plays."""

from datasets import Dataset
from trl import GRPOConfig

from rlnb.errors import ParamsError
from rlnb.game_2048.board import BoardKind
from rlnb.game_2048.board_secret import BoardSecret
from rlnb.game_2048.params import GptOss2048Params
from rlnb.game_2048.prompts import HELD_OUT_WORDING, build_strategy_prompt
from rlnb.grpo.config import order_prompts
from rlnb.policy import Policy


def make_strategy_dataset(params: GptOss2048Params, policy: Policy, config: GRPOConfig) -> Dataset:
    """Return the prompts of the whole run in order, each with its board and the seeds of its games.

    Every prompt has new boards, the same for all completions of its group and in every attempt of the run:
    their seeds come from `BoardSecret.of_run`. Raises ParamsError as that does, and if a prompt and its
    completion do not fit into `model.max_seq_length`.
    """
    rows: list[dict[str, object]] = []
    num_wordings = HELD_OUT_WORDING if params.prompt.preset == "api" else 1
    for name in params.board.kinds:
        for wording in range(num_wordings):
            prompt = build_strategy_prompt(params, BoardKind.parse(name), wording, policy.chat)
            rows.append(
                {"prompt": prompt.text, "prefix": prompt.prefix, "function": "strategy", "board": name}
            )
    longest = max(len(policy.tokenizer(row["prompt"])["input_ids"]) for row in rows)
    needed = longest + params.training.max_completion_length
    if needed > params.model.max_seq_length:
        raise ParamsError(
            f"model.max_seq_length = {params.model.max_seq_length} does not hold a prompt of {longest} "
            f"tokens and training.max_completion_length = {params.training.max_completion_length}; "
            f"write at least {needed}"
        )
    secret = BoardSecret.of_run(params)
    num_boards = params.reward.num_boards
    return Dataset.from_list(
        [
            {**row, "seeds": secret.seeds("training", config.seed, position, num_boards=num_boards)}
            for position, row in enumerate(order_prompts(rows, config))
        ]
    )
