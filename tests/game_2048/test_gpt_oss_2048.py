"""The parameters of 2048: the published settings to the letter, deviations with reasons, refusals."""

from rlnb.game_2048.play import BoardRules
from rlnb.params import load_params


def load(profile="default", **sections):
    return load_params("gpt_oss_2048", profile=profile, overrides=sections, environ={})


def test_the_published_rewards_have_one_limit_of_time_whatever_the_profile():
    for profile in ("default", "cpu", "h100"):
        rules = {
            preset: BoardRules.from_params(load(profile, reward={"preset": preset}))
            for preset in ("requirements", "graded")
        }
        published, graded = rules["requirements"], rules["graded"]
        assert published.move_cpu_seconds == published.board_cpu_seconds == published.wall_seconds == 5.0
        assert graded.move_cpu_seconds < graded.board_cpu_seconds < graded.wall_seconds == 5.0
