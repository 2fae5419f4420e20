"""The secret of a run's boards: kept, the same on resume, and unknown to programs."""

import hashlib
import hmac
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from rlnb.errors import ParamsError
from rlnb.game_2048.board import BoardKind
from rlnb.game_2048.board_secret import BoardSecret
from rlnb.game_2048.params import SECRET_FILE, GptOss2048Params
from rlnb.game_2048.play import BoardRules, make_public_seeds, play_many
from rlnb.params import load_params

KIND = BoardKind(3, 128)


def make_params(run: Path, **sections) -> GptOss2048Params:
    overrides = {"output_dir": str(run), **sections}
    return load_params("gpt_oss_2048", profile="tiny", overrides=overrides, environ={})


def draw_secret(run: Path, **sections) -> BoardSecret:
    return BoardSecret.of_run(make_params(run, **sections))


def test_no_seed_follows_from_what_is_public(tmp_path):
    """A strategy that could name its board's seed would know the tiles to come."""
    secret = draw_secret(tmp_path)
    names = [f"held out/{KIND}/{index}".encode() for index in range(12)]
    keys = [b"", bytes.fromhex(secret.fingerprint), secret.fingerprint.encode()]
    digests = [hashlib.sha256(name).digest() for name in names]
    digests += [hmac.digest(key, name, "sha256") for name in names for key in keys]
    foreseen = {int.from_bytes(digest[:8], "big") >> 1 for digest in digests}
    assert foreseen > set(make_public_seeds("held out", KIND, num_boards=12))
    assert foreseen.isdisjoint(secret.seeds("held out", KIND, num_boards=12))


def test_two_runs_play_other_boards_and_a_resumed_one_the_same(tmp_path):
    first, second = draw_secret(tmp_path / "first"), draw_secret(tmp_path / "second")
    (tmp_path / "first" / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    resumed = draw_secret(tmp_path / "first")
    seeds = [secret.seeds("held out", KIND, num_boards=4) for secret in (first, resumed, second)]
    assert seeds[0] == seeds[1] and not set(seeds[0]) & set(seeds[2])
    assert first.fingerprint == resumed.fingerprint != second.fingerprint
    assert first.seeds("a", 1, num_boards=1) != first.seeds("a", 2, num_boards=1)


def test_the_secret_is_its_owners_alone_and_shown_nowhere(tmp_path):
    secret = draw_secret(tmp_path)
    file = tmp_path / SECRET_FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and [*tmp_path.iterdir()] == [file]
    text = file.read_text().strip()
    assert bytes.fromhex(text) == secret.key
    assert text[:8] not in repr(secret) and repr(secret.key)[2:10] not in repr(secret)
    assert secret.fingerprint not in text and len(secret.fingerprint) == 16


def test_a_strategy_cannot_read_the_secret_at_level_standard(tmp_path, sandbox):
    if sandbox.level == "basic":
        pytest.skip("this machine isolates at level basic only: programs read what the user may read")
    seed = draw_secret(tmp_path).seeds("a", num_boards=1)[0]
    code = f"def strategy(board):\n    return open({str(tmp_path / SECRET_FILE)!r}).read()\n"
    (game,) = play_many([(code, KIND, seed)], sandbox, rules=BoardRules())
    assert game.ending == "exception"
    assert game.error.startswith(("PermissionError", "FileNotFoundError"))  # at level strict it is not there


def test_ranks_that_start_together_agree_on_the_first_secret_written(tmp_path, monkeypatch):
    with ThreadPoolExecutor(8) as pool:
        secrets = list(pool.map(lambda _: draw_secret(tmp_path), range(32)))
    assert len({secret.key for secret in secrets}) == 1 and len([*tmp_path.iterdir()]) == 1
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError))  # a file system without hard links
    assert draw_secret(tmp_path / "other") == draw_secret(tmp_path / "other")


def test_a_run_with_checkpoints_does_not_draw_other_boards_when_its_secret_is_gone(tmp_path):
    (tmp_path / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    with pytest.raises(ParamsError, match="board_secret: is missing"):
        draw_secret(tmp_path)
    assert not (tmp_path / SECRET_FILE).exists()
    assert draw_secret(tmp_path, training={"resume": "never"}).key


def test_a_broken_secret_is_refused_and_left_as_it_is(tmp_path):
    for text in ("", "00" * 31, "G" * 64):
        (tmp_path / SECRET_FILE).write_text(text)
        with pytest.raises(ParamsError, match="is not the secret"):
            draw_secret(tmp_path)
        assert (tmp_path / SECRET_FILE).read_text() == text
