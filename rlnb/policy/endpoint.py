"""A server that speaks OpenAI's protocol, vLLM's for instance: many requests at a time, busy ones again."""

import json
import os
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any, Final, Literal

import requests
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from rlnb.errors import PolicyUnavailable

API_KEY = "OPENAI_API_KEY"
SERVER_STOPS = 4  # OpenAI's protocol allows no more
CHAT: Final = "/chat/completions"
TEXT: Final = "/completions"


@dataclass(frozen=True)
class Endpoint:
    """One model of a server.

    base_url: up to and with `/v1`. The key, where one is needed, is in OPENAI_API_KEY. A request that fails
    for the moment is made again, waiting longer each time.
    """

    base_url: str
    model: str
    num_parallel: int = 32
    num_retries: int = 5
    timeout_seconds: float = 600.0

    def answers(
        self, bodies: Sequence[Mapping[str, Any]], *, path: Literal["/chat/completions", "/completions"]
    ) -> Generator[tuple[int, str], None, None]:
        """(number of the request, text of its answer), in the order in which answers come.

        bodies: what is asked, without the model: messages for a chat, a prompt for a text, how to sample.
        Raises PolicyUnavailable, which says what was answered. Whoever may stop early closes the iterator
        (`contextlib.closing`); requests that have not begun are then never made.
        """
        retry = Retry(
            self.num_retries,
            backoff_factor=0.5,
            status_forcelist=(429, 500, 502, 503, 504),
            allowed_methods=None,
        )
        adapter = HTTPAdapter(pool_maxsize=self.num_parallel, max_retries=retry)
        pool = ThreadPoolExecutor(self.num_parallel, thread_name_prefix="endpoint")
        with requests.Session() as session:
            session.mount("http://", adapter)
            session.mount("https://", adapter)
            try:
                asked = {
                    pool.submit(self.ask, session, body, path): number for number, body in enumerate(bodies)
                }
                for answer in as_completed(asked):
                    yield asked[answer], answer.result()
            finally:  # an interrupt does not wait for the answers that are still being written
                pool.shutdown(wait=False, cancel_futures=True)

    def ask(self, session: requests.Session, body: Mapping[str, Any], path: str) -> str:
        """The text of one answer. Raises PolicyUnavailable."""
        key = os.environ.get(API_KEY)
        url = self.base_url.rstrip("/") + path
        try:
            response = session.post(
                url,
                headers={"Authorization": f"Bearer {key}"} if key else {},
                json={**body, "model": self.model},
                timeout=self.timeout_seconds,
                allow_redirects=False,  # one would turn the question into a plain GET
            )
            if response.status_code != 200:
                raise PolicyUnavailable(f"{url}: answers {response.status_code}: {response.text[:300]}")
            choice = json.loads(response.text)["choices"][0]
            text = choice["message"]["content"] if path == CHAT else choice["text"]
            if not isinstance(text, str | None):
                raise TypeError(f"a completion = {text!r} is no text")
            return text or ""
        except requests.RequestException as error:
            raise PolicyUnavailable(f"{url}: cannot be asked: {error}; is the server running?") from error
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise PolicyUnavailable(f"{url}: does not speak OpenAI's protocol: {error!r}") from error
