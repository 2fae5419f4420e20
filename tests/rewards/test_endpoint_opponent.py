"""An opponent on a server that really listens: what it is asked, how its answers are read and counted."""

import json
import math
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rlnb.errors import PolicyUnavailable
from rlnb.params import load_params
from rlnb.policy.endpoint import Endpoint
from rlnb.rewards.endpoint_opponent import EndpointOpponent
from rlnb.rewards.opponents import Verdict
from rlnb.tasks.prediction import SHOTS, prediction_prompt

ADDS = "print(2 + 2)"
LINES = "print('a')\nprint('b')"
NOTHING = "print(0.1 + 0.2)"


class Handler(BaseHTTPRequestHandler):
    """Answers the program at the end of a prompt with the next of the texts that the test has set for it."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        program = re.findall(r"```python\n(.*?)\n```", body["prompt"], re.DOTALL)[-1]
        with server.lock:
            server.asked.append((self.path, body))
            texts = server.texts[program]
            text = texts.pop(0) if len(texts) > 1 else texts[0]
        data = json.dumps({"choices": [{"text": text}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.lock, server.asked, server.texts = threading.Lock(), [], {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def address(server) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/v1"


def opponent_on(server, **options) -> EndpointOpponent:
    return EndpointOpponent(Endpoint(address(server), "m"), **options)


def test_it_is_given_the_text_that_other_opponents_read_and_answers_greedily(server):
    server.texts = {ADDS: ["4\n```\n\nProgram:"]}
    assert opponent_on(server, num_shots=2, max_prediction_tokens=9, seed=7).predict([ADDS]) == ["4"]
    ((path, body),) = server.asked
    assert path == "/v1/completions"
    assert body == {
        "model": "m",
        "prompt": prediction_prompt(ADDS, num_shots=2),
        "stop": ["\n```"],
        "temperature": 0.0,
        "max_tokens": 9,
        "seed": 7,
    }
    assert SHOTS[1][0] in body["prompt"] and SHOTS[2][0] not in body["prompt"]


def test_predictions_stand_in_the_order_of_the_programs_and_equal_ones_are_asked_once(server):
    server.texts = {ADDS: ["4"], LINES: ["a \r\nb\n"], NOTHING: [""]}
    programs = [LINES, ADDS, LINES, NOTHING, ADDS]
    assert opponent_on(server).predict(programs) == ["a\nb", "4", "a\nb", "", "4"]
    assert sorted(body["seed"] for _, body in server.asked) == [0, 1, 2]


def test_the_commonest_of_several_samples_counts(server):
    server.texts = {ADDS: ["5", "4", "4"], LINES: ["a", "b", "b"]}
    opponent = opponent_on(server, num_predictions=3, temperature=0.9, seed=10)
    assert opponent.predict([ADDS, LINES]) == ["4", "b"]
    assert sorted(body["seed"] for _, body in server.asked) == [10, 11, 12, 13, 14, 15]
    assert {body["temperature"] for _, body in server.asked} == {0.9}


def test_a_verdict_says_right_or_wrong_and_knows_no_probability(server):
    server.texts = {ADDS: ["4"], LINES: ["a\nc"]}
    right, wrong = opponent_on(server).judge([ADDS, LINES], ["4", "a\nb"])
    assert (right.is_right, wrong.is_right) == (True, False)
    for verdict in (right, wrong):
        assert isinstance(verdict, Verdict) and verdict.num_tokens == 0
        assert math.isnan(verdict.logprob) and math.isnan(verdict.token_probability)


def test_without_programs_nothing_is_asked(server):
    assert opponent_on(server).judge([], []) == []
    assert server.asked == []


def test_it_is_made_from_the_parameters(server):
    section = {"kind": "endpoint", "base_url": address(server), "model_name": "served", "num_shots": 0,
               "batch_size": 3}  # fmt: skip
    overrides = {"opponent": section, "evaluation": {"second_judge": "none"}}
    params = load_params("grpo_code_game", profile="default", overrides=overrides, environ={})
    opponent = EndpointOpponent.from_params(params.opponent, seed=4)
    asked = Endpoint(address(server), "served", num_parallel=3)
    assert opponent == EndpointOpponent(asked, 0, 1, 0.7, params.opponent.max_prediction_tokens, 4)
    server.texts = {ADDS: ["4"]}
    assert opponent.judge([ADDS], ["4"])[0].is_right
    assert server.asked[0][1]["model"] == "served"


def test_a_server_without_completions_is_told_with_its_address(server):
    opponent = EndpointOpponent(Endpoint(address(server), "m", num_retries=0))
    server.shutdown()
    server.server_close()
    with pytest.raises(PolicyUnavailable) as raised:
        opponent.predict([ADDS])
    assert re.fullmatch(
        rf"{address(server)}/completions: cannot be asked: .*; is the server running\?", str(raised.value)
    )
