"""A server that speaks OpenAI's protocol, for example vLLM: parallel requests, with retries.

Its answers are limited in size and time, and so are the waits that it asks for.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import requests
from pydantic import JsonValue, TypeAdapter
from requests.adapters import HTTPAdapter
from urllib3 import HTTPConnectionPool, HTTPResponse, HTTPSConnectionPool
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from rlnb.errors import PolicyUnavailable
from rlnb.policy.generation import Completion, Progress, Received

MAX_SERVER_STOPS = 4  # of OpenAI's protocol
NUM_TRIES, TIMEOUT_SECONDS, MAX_ANSWER_BYTES = 6, 600, 2**24
BUSY, LONGEST_WAIT_SECONDS = (429, 500, 502, 503, 504), 60.0
CHAT, TEXT = "/chat/completions", "/completions"
CUT = ("length", "content_filter")  # values of finish_reason


class TimedConnection(HTTPConnection):
    """A connection that ends where the head of an answer does not: other limits are for each read."""

    def getresponse(self) -> HTTPResponse:  # type: ignore[override]
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            self.sock.shutdown(socket.SHUT_RDWR)

        watch = threading.Timer(TIMEOUT_SECONDS, end)
        watch.daemon = True
        watch.start()
        try:
            response = super().getresponse()
            if is_late.is_set():  # what was read by then may look whole
                raise TimeoutError(f"no head of an answer within {TIMEOUT_SECONDS} s")
            return response
        finally:
            watch.cancel()


class TimedSecureConnection(TimedConnection, HTTPSConnection):
    """The same with TLS."""


class TimedPool(HTTPConnectionPool):
    ConnectionCls = TimedConnection


class TimedSecurePool(HTTPSConnectionPool):
    ConnectionCls = TimedSecureConnection


@dataclass(frozen=True)
class Endpoint:
    """One model of a server. base_url: up to and including `/v1`. A key, if it needs one: OPENAI_API_KEY."""

    base_url: str
    model: str
    num_parallel: int = 32

    def answers(
        self,
        bodies: Sequence[Mapping[str, JsonValue]],
        *,
        path: str,
        progress: Progress | None = None,
        received: Received | None = None,
    ) -> list[Completion]:
        """Return the answer to each request.

        bodies: JSON of the requests without the model. path: CHAT or TEXT. received: called with each
        index and answer, progress with (done, total); what they raise cancels the requests that have not
        begun. Raises PolicyUnavailable with the server's answer.
        """
        adapter = HTTPAdapter(pool_maxsize=self.num_parallel)
        adapter.poolmanager.pool_classes_by_scheme = {"http": TimedPool, "https": TimedSecurePool}
        pool = ThreadPoolExecutor(self.num_parallel, thread_name_prefix="endpoint")
        with requests.Session() as session:
            session.mount("http://", adapter)
            session.mount("https://", adapter)
            try:
                requested = {
                    pool.submit(self.request, session, body, path): index for index, body in enumerate(bodies)
                }
                for num_done, answer in enumerate(as_completed(requested), start=1):
                    completion = answer.result()
                    if received:
                        received(requested[answer], completion)
                    if progress:
                        progress(num_done, len(bodies))
                return [answer.result() for answer in requested]
            finally:  # an interrupt does not wait for answers that are still being written
                pool.shutdown(wait=False, cancel_futures=True)

    def request(self, session: requests.Session, body: Mapping[str, JsonValue], path: str) -> Completion:
        """Return one answer, cut also where a filter or nothing but thoughts took its place.

        Raises PolicyUnavailable.
        """
        url = self.base_url.rstrip("/") + path
        try:
            status, answer = self.post(session, url, {**body, "model": self.model})
            if status != 200:
                shown = answer.decode(errors="replace").replace(read_key() or "\0", "(the key)")[:300]
                raise PolicyUnavailable(f"{url}: answers {status}: {shown}")
            choice = json.loads(answer)["choices"][0]
            message = choice["message"] if path == CHAT else {"content": choice["text"]}
            text, thoughts = message["content"], message.get("reasoning_content") or message.get("reasoning")
            is_cut = choice.get("finish_reason") in CUT or bool(text is None and thoughts)
            text = "" if text is None else TypeAdapter(str).validate_python(text)
            return Completion(text.encode(errors="replace").decode(), is_cut)  # no half of a surrogate pair
        except (requests.RequestException, HTTPError) as error:
            raise PolicyUnavailable(f"{url}: cannot be asked: {error}; is the server running?") from error
        except (KeyError, IndexError, TypeError, ValueError, RecursionError) as error:
            raise PolicyUnavailable(f"{url}: does not speak OpenAI's protocol: {error!r}") from error

    def post(self, session: requests.Session, url: str, body: Mapping[str, JsonValue]) -> tuple[int, bytes]:
        """Return the status and the body of an answer, trying again while there is none or it is BUSY.

        Raises RequestException or HTTPError, and ValueError for an answer that is too long or too slow.
        """
        key, attempt = read_key(), 0

        def authorize(request: requests.PreparedRequest) -> requests.PreparedRequest:
            if key:
                request.headers["Authorization"] = f"Bearer {key}"
            return request

        while True:
            attempt, wait = attempt + 1, ""
            try:
                # A redirect would turn the question into a plain GET.
                with session.post(
                    url,
                    auth=authorize,  # else one of ~/.netrc is sent in the key's place
                    json=body,
                    timeout=TIMEOUT_SECONDS,
                    allow_redirects=False,
                    stream=True,
                ) as response:
                    answer = read_answer(response)
                    if response.status_code not in BUSY or attempt == NUM_TRIES:
                        return response.status_code, answer
                    wait = response.headers.get("Retry-After", "")
            except (requests.RequestException, HTTPError):
                if attempt == NUM_TRIES:
                    raise
            seconds = float(wait) if wait.isascii() and wait.isdigit() else 0.0
            time.sleep(min(max(seconds, 2.0**attempt / 4), LONGEST_WAIT_SECONDS))


def read_key() -> str:
    """Return the key of servers, "" without one. Raises PolicyUnavailable for what no header can hold."""
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):  # requests would show it in its error
        raise PolicyUnavailable("OPENAI_API_KEY: holds characters that no key has; copy it again")
    return key


def read_answer(response: requests.Response) -> bytes:
    """Return the body of an answer. Raises ValueError for one that is too long or comes too slowly."""
    answer, ends = bytearray(), time.monotonic() + TIMEOUT_SECONDS
    while chunk := response.raw.read1(2**16, decode_content=True):
        answer += chunk
        if len(answer) > MAX_ANSWER_BYTES or time.monotonic() > ends:
            raise ValueError(f"an answer of more than {MAX_ANSWER_BYTES} bytes or {TIMEOUT_SECONDS} s")
    return bytes(answer)
