"""An opponent of the code game on a server: it writes predictions, and shows no probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlnb.params.grpo_code_game import OpponentParams
from rlnb.policy.endpoint import TEXT, Endpoint
from rlnb.rewards.opponents import Verdict, compared, majority
from rlnb.tasks.prediction import PREDICTION_STOP, parse_prediction, prediction_prompt


@dataclass(frozen=True)
class EndpointOpponent:
    """A model behind `/completions`, which is given the very text that an opponent in this process reads.

    num_shots: solved examples before each program. num_predictions: 1 = greedy; above, so many are drawn at
    `temperature`, and the commonest counts. max_prediction_tokens: longest prediction. seed: of the first
    request; a program that stands in a batch twice is asked about once.
    """

    endpoint: Endpoint
    num_shots: int = 6
    num_predictions: int = 1
    temperature: float = 0.7
    max_prediction_tokens: int = 64
    seed: int = 0

    @classmethod
    def from_params(cls, params: OpponentParams, *, seed: int) -> "EndpointOpponent":
        """The opponent that the section `opponent` asks for, of kind endpoint."""
        return cls(
            Endpoint(params.base_url, params.model_name, num_parallel=params.batch_size),
            num_shots=params.num_shots,
            num_predictions=params.num_predictions,
            temperature=params.temperature,
            max_prediction_tokens=params.max_prediction_tokens,
            seed=seed,
        )

    def predict(self, programs: Sequence[str]) -> list[str]:
        """The normalised output that it predicts for each program. Raises PolicyUnavailable."""
        distinct = list(dict.fromkeys(programs))
        count = self.num_predictions
        bodies = [
            {
                "prompt": prediction_prompt(program, num_shots=self.num_shots),
                "stop": [PREDICTION_STOP],
                "temperature": self.temperature if count > 1 else 0.0,
                "max_tokens": self.max_prediction_tokens,
                "seed": self.seed + row * count + number,
            }
            for row, program in enumerate(distinct)
            for number in range(count)
        ]
        texts = dict(self.endpoint.answers(bodies, path=TEXT))
        predictions = [parse_prediction(texts[number]) for number in range(len(bodies))]
        of_program = {
            program: majority(predictions[row * count : (row + 1) * count])
            for row, program in enumerate(distinct)
        }
        return [of_program[program] for program in programs]

    def judge(self, programs: Sequence[str], outputs: Sequence[str]) -> list[Verdict]:
        """Whether it predicts outputs[i], normalised, for programs[i]. Raises PolicyUnavailable."""
        return compared(self.predict(programs), outputs)
