"""Writers of completions: a tiny policy, a real server with OpenAI's protocol, a file."""

import contextlib
import gzip
import hashlib
import json
import socket
import threading
import time
import traceback
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from refusals import refused
from tiny_policy import load_tiny

from rlnb.errors import PolicyUnavailable
from rlnb.mbpp.checking import evaluate
from rlnb.mbpp.problems import Problem, load_mbpp
from rlnb.mbpp.prompts import TEMPLATES, Question, build_question
from rlnb.mbpp.results import make_headline, mbpp_metrics, summarize
from rlnb.mbpp.samples import Sample, hash_samples, read_samples, write_samples
from rlnb.mbpp.writers import Writer, keep_completions
from rlnb.policy import endpoint
from rlnb.policy.endpoint import Endpoint

CHAT, PAPER = TEMPLATES["chat"], TEMPLATES["paper"]
DOUBLE = Problem(1, "Double a number.", "def double(n): return 2 * n", ("assert double(2) == 4",))


class Handler(BaseHTTPRequestHandler):
    """Answers what the test has set, the last answer again and again; keeps what it was asked."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append((self.path, dict(self.headers), body))
        status, answer = self.server.answers[0]
        if len(self.server.answers) > 1:
            del self.server.answers[0]
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **self.server.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def server():
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.requests, server.answers, server.headers = [], [], {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def writer_for(server, **options) -> Writer:
    url = f"http://127.0.0.1:{server.server_address[1]}/v1/"
    return Writer(Endpoint(url, "m", **options), 0.2, 64, batch_size=2, seed=5)


def chat_answer(text: object):
    return 200, {"choices": [{"message": {"role": "assistant", "content": text}}]}


def written(writer, questions, template) -> dict[int, str]:
    asked = [Question(text, function="") for text in questions]
    return {index: completion.text for index, completion in enumerate(writer(asked, template))}


def test_a_chat_goes_to_chat_completions_and_is_judged(server, sandbox):
    server.answers = [chat_answer("```python\ndef double(n): return 2 * n\n```")]
    samples = evaluate([DOUBLE], CHAT, writer_for(server), sandbox, shots={}, num_samples=2)
    assert [sample.passed for sample in samples] == [True, True]
    paths, _, bodies = zip(*server.requests, strict=True)
    assert set(paths) == {"/v1/chat/completions"}
    assert bodies[0]["messages"] == [{"role": "user", "content": build_question(DOUBLE, CHAT, {})}]
    assert (bodies[0]["model"], bodies[0]["temperature"], bodies[0]["max_tokens"]) == ("m", 0.2, 64)
    assert sorted(body["seed"] for body in bodies) == [5, 6]


BLOCK = "```python\ndef double(n): return 2 * n\n```\nThis"


@pytest.mark.parametrize(
    "message, finish_reason, is_cut",
    [
        ({"content": "def double(n"}, "length", True),
        ({"content": BLOCK}, "length", False),  # its program is complete
        ({"content": BLOCK}, "stop", False),
        ({"content": "def double(n"}, "stop", False),
        ({"content": "I"}, "content_filter", True),
        ({"content": None, "reasoning_content": "Double it is"}, "length", True),
        ({"content": None, "reasoning": "Double it is"}, "stop", True),
        ({"content": None}, "stop", False),
    ],
)
def test_answers_of_a_server_that_were_cut_are_counted_and_warned_of(
    server, sandbox, message, finish_reason, is_cut
):
    server.answers = [(200, {"choices": [{"message": message, "finish_reason": finish_reason}]})]
    samples = evaluate([DOUBLE], CHAT, writer_for(server), sandbox, shots={})
    summary = summarize(samples)
    assert summary["cut_share"] == mbpp_metrics(samples)["mbpp_eval/cut_share"] == is_cut
    assert any("mbpp.max_completion_length" in line for line in summary["warnings"]) == is_cut
    assert f"{is_cut:.1%} of the answers were cut" in make_headline(summary)


def test_text_to_be_continued_goes_to_completions_with_its_stops_and_the_key(server, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    server.answers = [(200, {"choices": [{"text": "def double(n): return 2 * n\n"}]})]
    assert written(writer_for(server), ["text"], PAPER) == {0: "def double(n): return 2 * n\n"}
    ((path, headers, body),) = server.requests
    assert headers["Authorization"] == "Bearer secret"
    assert (path, body["prompt"], body["stop"]) == ("/v1/completions", "text", ["[DONE]"])


@pytest.mark.parametrize("key", ["sk-madeUp", "sk-made\nUp", "sk-mädeUp", "sk-made\x00Up"])
def test_no_error_shows_the_key(server, monkeypatch, key):
    monkeypatch.setattr(endpoint.os, "environ", {"OPENAI_API_KEY": key})
    server.answers = [(401, f"wrong key: {key}".encode())]
    with pytest.raises(PolicyUnavailable) as refusal:
        written(writer_for(server), ["q"], CHAT)
    shown = "".join(traceback.format_exception(refusal.value))
    assert not any(part in shown for part in (key, repr(key)[1:-1], ascii(key)[1:-1]))


def test_the_key_is_sent_and_not_a_password_of_netrc(server, monkeypatch, tmp_path):
    (tmp_path / "netrc").write_text("default login a password b\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server.answers = [chat_answer("hi")]
    for key, sent in (("secret", "Bearer secret"), ("", None)):
        monkeypatch.setenv("OPENAI_API_KEY", key)
        written(writer_for(server), ["q"], CHAT)
        assert server.requests[-1][1].get("Authorization") == sent


def test_a_server_that_is_busy_is_asked_again(server):
    server.answers = [(503, {}), (429, {}), chat_answer(None)]
    assert written(writer_for(server), ["q"], CHAT) == {0: ""}  # no content is an empty completion
    assert len(server.requests) == 3


def test_a_server_that_does_not_answer_as_it_should_is_named(server):
    writer = writer_for(server)
    for answer in ((404, b"no such model"), (200, b"{}"), chat_answer(5)):
        server.answers = [answer]
        with pytest.raises(PolicyUnavailable, match=f"^{writer.source.base_url}chat/completions: "):
            written(writer, ["q"], CHAT)


def test_a_server_decides_neither_how_long_to_wait_nor_how_much_to_read(server, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(endpoint.time, "sleep", waits.append)
    for wait, longest in (("86400", 60.0), ("9" * 400, 60.0), ("3", 3.0), ("-1", 0.5), ("Tuesday", 0.5)):
        waits.clear()
        server.answers, server.headers = [(503, {}), chat_answer("x")], {"Retry-After": wait}
        assert written(writer_for(server), ["q"], CHAT) == {0: "x"} and waits == [longest], wait
    server.headers = {}
    for status in (200, 503):
        server.answers = [(status, b'{"choices": "' + b" " * 2**25)]
        with pytest.raises(PolicyUnavailable, match=f"more than {endpoint.MAX_ANSWER_BYTES} bytes"):
            written(writer_for(server), ["q"], CHAT)
    packed = gzip.compress(b" " * 2**26)
    server.answers, server.headers = [(200, packed)], {"Content-Encoding": "gzip"}
    with pytest.raises(PolicyUnavailable, match=f"more than {endpoint.MAX_ANSWER_BYTES} bytes"):
        written(writer_for(server), ["q"], CHAT)
    server.answers, server.headers = [(200, b"[" * 10**6)], {}
    with pytest.raises(PolicyUnavailable, match="does not speak"):
        written(writer_for(server), ["q"], CHAT)


def test_an_answer_that_trickles_is_ended(server, monkeypatch):
    monkeypatch.setattr(endpoint, "TIMEOUT_SECONDS", 0.0001)
    response = SimpleNamespace(raw=SimpleNamespace(read1=lambda *_, **__: time.sleep(0.001) or b" "))
    with pytest.raises(ValueError, match=r"0\.0001 s"):
        endpoint.read_answer(response)


@pytest.mark.parametrize("head", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: ", b"a"])
def test_an_answer_whose_head_never_ends_is_ended(head, monkeypatch):
    monkeypatch.setattr(endpoint, "TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(endpoint, "NUM_TRIES", 1)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer():
            connection = listening.accept()[0]
            with connection, contextlib.suppress(OSError):
                connection.sendall(head)
                while True:
                    connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" if b"100" in head else b"a")
                    time.sleep(0.01)

        answering = threading.Thread(target=answer)
        answering.start()
        source = Endpoint(f"http://127.0.0.1:{listening.getsockname()[1]}/v1", "m")
        with pytest.raises(PolicyUnavailable, match="cannot be asked"):
            list(source.answers([{}], path=endpoint.CHAT))
        answering.join()


def test_half_a_surrogate_pair_is_no_text(server):
    server.answers = [chat_answer("a\ud800")]
    assert written(writer_for(server), ["q"], CHAT) == {0: "a?"}


def interrupted(num_done: int, total: int) -> None:
    raise KeyboardInterrupt


def test_an_interrupt_asks_nothing_further(server, monkeypatch):
    server.answers, is_over, answer = [chat_answer("x")], threading.Event(), Handler.do_POST

    def answer_the_first(handler):
        if server.requests:
            is_over.wait(60)
        answer(handler)

    monkeypatch.setattr(Handler, "do_POST", answer_the_first)
    with pytest.raises(KeyboardInterrupt):
        writer_for(server, num_parallel=1)([Question("q", "f")] * 100, CHAT, interrupted)
    is_over.set()
    for thread in threading.enumerate():
        if thread.name.startswith("endpoint"):
            thread.join()
    assert 1 <= len(server.requests) <= 2  # the one that is on its way, of a hundred


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("models"))
    return load_tiny(cache, is_trained=False)


def test_a_policy_answers_every_question_of_every_template(tiny):
    problems = load_mbpp("builtin").problems
    writer = Writer(tiny, temperature=1.0, max_completion_length=8, batch_size=2, seed=3)
    for template in TEMPLATES.values():
        questions = [build_question(problems[number], template, problems) for number in (11, 12, 13)]
        assert sorted(written(writer, questions, template)) == [0, 1, 2]


@pytest.mark.parametrize(
    "first", ["class Node:\n    pass\n", "assert double(2) == 4\n", "def half(n):\n    return n\n"]
)
def test_an_answer_goes_on_until_the_asked_function_is_there(server, sandbox, first):
    """A server says that it was cut; it was not where the program is whole."""
    block, rest = f"```python\n{first}```\n", f"```python\n{DOUBLE.code}\n```\nThis"
    is_cut = []
    for text in (block, block + rest):
        status, body = chat_answer(text)
        body["choices"][0]["finish_reason"] = "length"
        server.answers = [(status, body)]
        samples = evaluate([DOUBLE], CHAT, writer_for(server), sandbox, shots={})
        is_cut.append(samples[0].cut)
    assert is_cut == [True, False] and samples[0].passed


def test_samples_are_written_and_read_in_the_form_of_evalplus(tmp_path):
    path = tmp_path / "samples.jsonl"
    sample = Sample(1, "", 0, "passed", True, (True,), "", "text", False, DOUBLE.code)
    write_samples(path, [sample, replace(sample, program=None)])
    assert json.loads(path.read_text().splitlines()[0]) == {"task_id": "Mbpp/1", "solution": DOUBLE.code}
    path.write_text(path.read_text() + json.dumps({"task_id": 2, "solution": "x = 1"}))
    again = [(sample.task_id, sample.solution) for sample in read_samples(str(path), [1, 2])]
    assert again == [(1, DOUBLE.code), (1, ""), (2, "x = 1")]


def test_samples_are_read_in_the_other_forms_of_evalplus_and_bigcode(tmp_path):
    programs = {"1": [f"x = {number}\n" for number in range(11)], "2": ["ü = 1\n"]}
    expected = [(int(task_id), program) for task_id in programs for program in programs[task_id]]
    folder = tmp_path / "folder"
    for task_id, sources in programs.items():
        (folder / f"Mbpp_{task_id}").mkdir(parents=True)
        for number, source in enumerate(sources):
            (folder / f"Mbpp_{task_id}" / f"{number}.py").write_text(source, encoding="utf-8")
    paths = [folder, *(tmp_path / name for name in ("line.json", "indented.json", "names.json"))]
    paths[1].write_text(json.dumps(programs))
    paths[2].write_text(json.dumps(programs, indent=1))
    paths[3].write_text(json.dumps({f"Mbpp/{task_id}": sources for task_id, sources in programs.items()}))
    for path in paths:
        again = read_samples(str(path), [1, 2])
        assert [(sample.task_id, sample.solution) for sample in again] == expected, path
    before = hash_samples(str(folder))
    (folder / "Mbpp_2").rename(folder / "Mbpp_3")
    assert hash_samples(str(folder)) != before
    assert "2 differ, task_id 2 " in refused(read_samples, str(folder), [1, 2])
    (folder / "Mbpp_3").rename(folder / "HumanEval_2")
    assert "task_id = 'HumanEval_2'" in refused(read_samples, str(folder), [1, 2])


def test_a_file_that_lacks_samples_or_has_others_is_refused(tmp_path):
    path = tmp_path / "samples"
    for text, said in (
        ('{"task_id": 1}', "'solution'"),
        ('{"task_id": "Mbpp/x", "solution": ""}', "task_id = 'Mbpp/x'"),
        ('{"task_id": 9, "solution": ""}', "3 differ, task_id 1 "),
        ("", "holds no samples"),
        ('[["x = 1"], ["x = 2"]]', "Mbpp_11/0.py"),  # bigcode's generations
        ('{"doc_id": 0, "doc": {"task_id": 1}, "resps": [["x = 1"]]}', "Mbpp_11/0.py"),  # lm-eval's log
    ):
        path.write_text(text)
        message = refused(read_samples, str(path), [1, 2])
        assert message.startswith(str(path)) and said in message and "\n" not in message


def test_what_goes_on_is_asked_with_the_seeds_of_an_uninterrupted_evaluation(server, tmp_path):
    path, asked = tmp_path / "kept.jsonl", [Question("q", "")] * 4
    key = hashlib.sha256(json.dumps("m").encode()).hexdigest()
    path.write_text("".join(f"{json.dumps([key, row, 'x', False])}\n" for row in (0, 2)))
    server.answers = [chat_answer("y")]
    keep_completions(writer_for(server), path, settings="m")(asked, CHAT)
    seeds = sorted(body["seed"] for _, _, body in server.requests)
    assert [seed - writer_for(server).seed for seed in seeds] == [1, 3]
