"""An opponent that predicts by a table, and nothing for a program that is not in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlnb.code_game.opponents import Predictor
from rlnb.code_game.prediction import normalise_output


@dataclass
class ScriptedOpponent(Predictor):
    predictions: Mapping[str, str]

    def predict(self, programs: Sequence[str]) -> list[str]:
        return [normalise_output(self.predictions.get(program, "")) for program in programs]
