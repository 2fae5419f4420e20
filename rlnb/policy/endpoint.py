"""A server that speaks OpenAI's protocol, for example vLLM: parallel requests, with retries."""

import json
import os
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import requests
from pydantic import JsonValue, TypeAdapter
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from rlnb.errors import PolicyUnavailable
from rlnb.policy.generation import Completion

MAX_SERVER_STOPS = 4  # of OpenAI's protocol
NUM_RETRIES, TIMEOUT_SECONDS = 5, 600
CHAT, TEXT = "/chat/completions", "/completions"
CUT = ("length", "content_filter")  # values of finish_reason


@dataclass(frozen=True)
class Endpoint:
    """One model of a server. base_url: up to and including `/v1`. A key, if it needs one: OPENAI_API_KEY."""

    base_url: str
    model: str
    num_parallel: int = 32

    def answers(
        self, bodies: Sequence[Mapping[str, JsonValue]], *, path: str
    ) -> Generator[tuple[int, Completion], None, None]:
        """Yield (index of the request, its answer) in the order in which answers arrive.

        bodies: JSON of the requests without the model. path: CHAT or TEXT. Raises PolicyUnavailable with the
        server's answer. Closing the iterator cancels the requests that have not begun.
        """
        busy = (429, 500, 502, 503, 504)
        retry = Retry(NUM_RETRIES, backoff_factor=0.5, status_forcelist=busy, allowed_methods=None)
        adapter = HTTPAdapter(pool_maxsize=self.num_parallel, max_retries=retry)
        pool = ThreadPoolExecutor(self.num_parallel, thread_name_prefix="endpoint")
        with requests.Session() as session:
            session.mount("http://", adapter)
            session.mount("https://", adapter)
            try:
                requested = {
                    pool.submit(self.request, session, body, path): index for index, body in enumerate(bodies)
                }
                for answer in as_completed(requested):
                    yield requested[answer], answer.result()
            finally:  # an interrupt does not wait for answers that are still being written
                pool.shutdown(wait=False, cancel_futures=True)

    def request(self, session: requests.Session, body: Mapping[str, JsonValue], path: str) -> Completion:
        """Return one answer, cut also where a filter or nothing but thoughts took its place.

        Raises PolicyUnavailable.
        """
        key = os.environ.get("OPENAI_API_KEY")
        url = self.base_url.rstrip("/") + path
        try:
            # A redirect would turn the question into a plain GET.
            response = session.post(
                url, headers={"Authorization": f"Bearer {key}"} if key else {},
                json={**body, "model": self.model}, timeout=TIMEOUT_SECONDS, allow_redirects=False,
            )  # fmt: skip
            if response.status_code != 200:
                raise PolicyUnavailable(f"{url}: answers {response.status_code}: {response.text[:300]}")
            choice = json.loads(response.text)["choices"][0]
            message = choice["message"] if path == CHAT else {"content": choice["text"]}
            text, thoughts = message["content"], message.get("reasoning_content") or message.get("reasoning")
            is_cut = choice.get("finish_reason") in CUT or bool(text is None and thoughts)
            return Completion("" if text is None else TypeAdapter(str).validate_python(text), is_cut)
        except requests.RequestException as error:
            raise PolicyUnavailable(f"{url}: cannot be asked: {error}; is the server running?") from error
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise PolicyUnavailable(f"{url}: does not speak OpenAI's protocol: {error!r}") from error
