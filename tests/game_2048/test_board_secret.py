"""The secret of a run's boards: kept, the same on resume, and unknown to programs."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from strategy_honest import SLIDE

from rlnb.errors import ParamsError
from rlnb.game_2048.board import BoardKind
from rlnb.game_2048.board_secret import BoardSecret
from rlnb.game_2048.params import SECRET_FILE, GptOss2048Params
from rlnb.game_2048.play import BoardRules, make_public_seeds, play_many
from rlnb.params import load_params

KIND = BoardKind(3, 128)
SLOW = BoardRules(move_cpu_seconds=4.0, board_cpu_seconds=8.0, wall_seconds=20.0)
# It knows how boards are made and named, and all that is public about a run. If one of its seeds gives the
# first board, it searches the true future for moves that reach the target; else it plays any legal key.
HOSTILE = (
    SLIDE
    + """
import hashlib, hmac, random
SIZE, TARGET, KEYS = 3, 128, "éuai"
NAMES = [f"held out/3x3/128/{i}" for i in range(32)] + [f"training/3407/{i}/0" for i in range(32)]
plan = None

def spawn(board, draws, at):
    empty = [(r, c) for r in range(SIZE) for c in range(SIZE) if not board[r][c]]
    r, c = empty[int(draws[at] * len(empty))]
    board[r][c] = 4 if draws[at + 1] < 0.1 else 2
    return board

def seeds():
    for name in NAMES:
        for key in (None, b"", bytes.fromhex(PUBLIC), PUBLIC.encode()):
            data = name.encode()
            hashed = hashlib.sha256(data) if key is None else hmac.new(key, data, "sha256")
            yield int.from_bytes(hashed.digest()[:8], "big") >> 1

def find(first):
    for seed in seeds():
        rng = random.Random(seed)
        draws = [rng.random() for _ in range(600)]
        if spawn(spawn([[0] * SIZE for _ in range(SIZE)], draws, 0), draws, 2) == first:
            return search(first, draws)
    return []

def search(first, draws):
    beam, at = [("", first)], 4
    while beam and at < 600:
        grown = {}
        for keys, board in beam:
            for key in KEYS:
                after = moved(board, key)
                if after != board:
                    after = spawn(after, draws, at)
                    if any(TARGET in row for row in after):
                        return list(keys + key)
                    grown[str(after)] = (keys + key, after)
        worth = lambda one: sum((t == 0) + t * t / 1000 for row in one[1] for t in row)
        beam, at = sorted(grown.values(), key=worth)[-24:], at + 2
    return []

def strategy(board):
    global plan
    if plan is None:
        plan = find(board) if FORESEES else []
    return plan.pop(0) if plan else next((k for k in KEYS if moved(board, k) != board), "é")
"""
)


def make_params(run: Path, **sections) -> GptOss2048Params:
    overrides = {"output_dir": str(run), **sections}
    return load_params("gpt_oss_2048", profile="tiny", overrides=overrides, environ={})


def draw_secret(run: Path, **sections) -> BoardSecret:
    return BoardSecret.of_run(make_params(run, **sections))


def test_a_strategy_that_knows_the_scheme_foresees_public_boards_but_not_a_runs(tmp_path, sandbox):
    (tmp_path / SECRET_FILE).write_text("5e" * 32)  # so that the counts below are the same each time
    secret = draw_secret(tmp_path)
    public_seeds = make_public_seeds("held out", KIND, num_boards=12)
    secret_seeds = secret.seeds("held out", KIND, num_boards=12)
    for seeds, public, foresees, num_won in (
        (public_seeds, "00", True, 9),
        (public_seeds, "00", False, 0),
        (secret_seeds, secret.fingerprint, True, 0),
    ):
        code = HOSTILE.replace("PUBLIC", repr(public)).replace("FORESEES", repr(foresees))
        games = play_many([(code, KIND, seed) for seed in seeds], sandbox, rules=SLOW)
        assert all(game.is_honest for game in games)
        assert sum(game.is_won for game in games) == num_won, (public, foresees)


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
    assert game.ending == "exception" and game.error.startswith("PermissionError")


def test_ranks_that_start_together_agree_on_the_first_secret_written(tmp_path, monkeypatch):
    with ThreadPoolExecutor(8) as pool:
        secrets = list(pool.map(lambda _: draw_secret(tmp_path), range(32)))
    assert len({secret.key for secret in secrets}) == 1 and len([*tmp_path.iterdir()]) == 1
    monkeypatch.setattr(os, "link", Mock(side_effect=PermissionError))  # a file system without hard links
    assert draw_secret(tmp_path / "other") == draw_secret(tmp_path / "other")
    assert stat.S_IMODE((tmp_path / "other" / SECRET_FILE).stat().st_mode) == 0o600


def test_a_run_with_checkpoints_does_not_draw_other_boards_when_its_secret_is_gone(tmp_path):
    (tmp_path / "checkpoints" / "checkpoint-2").mkdir(parents=True)
    with pytest.raises(ParamsError) as raised:
        draw_secret(tmp_path)
    assert str(raised.value) == (
        f"{tmp_path}/board_secret: is missing, though {tmp_path} has checkpoints; they were trained on "
        "boards that cannot be made without it. Put it back, or give another output_dir"
    )
    assert not (tmp_path / SECRET_FILE).exists()
    assert draw_secret(tmp_path, training={"resume": "never"}).key


def test_a_broken_secret_is_refused_and_left_as_it_is(tmp_path):
    for text in ("", "00" * 31, "0" * 64 + " 0", "G" * 64, "é" * 64):
        (tmp_path / SECRET_FILE).write_text(text, encoding="utf-8")
        with pytest.raises(ParamsError, match="is not the secret of a run's boards"):
            draw_secret(tmp_path)
        assert (tmp_path / SECRET_FILE).read_text(encoding="utf-8") == text


def test_a_run_plays_the_boards_of_another_and_never_changes_its_own(tmp_path):
    first = draw_secret(tmp_path / "first")
    board = {"same_as": str(tmp_path / "first")}
    for _ in range(2):  # also when it is resumed
        assert draw_secret(tmp_path / "second", board=board) == first
    draw_secret(tmp_path / "third")
    with pytest.raises(ParamsError) as raised:
        draw_secret(tmp_path / "third", board=board)
    assert str(raised.value) == (
        f"board.same_as = '{tmp_path}/first': has other boards than those that {tmp_path}/third was started "
        "with; give another output_dir, or leave board.same_as empty"
    )
    with pytest.raises(ParamsError, match="board.same_as = 'none' holds no board_secret; name the directory"):
        make_params(tmp_path, board={"same_as": "none"})
