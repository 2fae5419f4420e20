"""An answer in a player's own words, read back as one of the legal actions."""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

# Only the end of a long text is read for an answer without a box, and only the last boxes: the last answer
# counts, and the time to find it must not grow with what a hostile text repeats.
READ_CHARACTERS = 4000
READ_BOXES = 20
BOX_CHARACTERS = 400
MOST_NAMED = 12  # legal actions in a reason

_BOX = re.compile(r"boxed\s{0,4}\{")
_COMMAND = re.compile(r"\\[A-Za-z]+\s{0,4}|\\.")
_WRAPPED = re.compile(r"\\[A-Za-z]+\{(.*)\}", re.DOTALL)  # \text{...}
_BULLET = re.compile(r"^[-*•]\s+")
_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]+)+|[^\W_]+|[^\w\s]")  # 4.5 is one token and no id
_NUMBER = re.compile(r"[+-]?[0-9]+")
_PLAIN_NUMBER = re.compile(r"(?:[+-] )?[0-9]+(?= |$)")
# A word for choosing, then words that only join: "my answer is", "I choose action", "I'll go with the id".
_JOINING = r"(?: (?:is|:|=|would be|will be|be|to|the|a|my|action|id|number|option|→))*"
_CHOICE = re.compile(rf"\b(?:answer|choice|choose|chose|chosen|pick|select|go with|decide on){_JOINING} ")
_MENTION = re.compile(rf"\b(?:play|action|move|id|option){_JOINING} ")
_LABEL = re.compile(r"^(?:(?:my|the|final|answer|action|id|option|choice|move|number|is|:|=) )+")
_LEADING = re.compile(r"[*`$\"']*([+-]?[0-9]+)[*`$\"']*\s*(?:->|→|=|:|,|-|–|—|\(|because\b|since\b|as\b)")
_PLACEHOLDERS = ("", "id", "the id", "action id", "action", "number", "…")
_DROPPED = frozenset("\\.,;!?*$'\"`{}#_“”‘’")


@dataclass(frozen=True)
class ParsedAnswer:
    """action: a legal id, or None with the problem and a reason that a player understands ("" when fine)."""

    action: int | None
    problem: Literal["no_action", "illegal"] | None
    reason: str


def shortened(actions: Collection[int]) -> str:
    """Return '0, 1, 2', or the first ones and how many more there are."""
    named = ", ".join(map(str, list(actions)[:MOST_NAMED]))
    return named if len(actions) <= MOST_NAMED else f"{named} and {len(actions) - MOST_NAMED} more"


def parse_answer(text: str, words: Mapping[int, str]) -> ParsedAnswer:
    r"""Return the action that a text names. words: {legal id: words}, no two with the same words.

    1. A box beats all other text, and the last one that holds an answer counts: `\boxed{4}`, `\boxed{bet}`,
       `\boxed{\text{Action 4.}}`. One that is empty or repeats the prompt's "id" is passed over. One that
       holds anything else is a failed answer, whatever the text around it says.
    2. Without a box, the whole text or its last line as an id or words: "4", "**4.**", "4 -> bet", "d3".
       A part that only one action's words have means that action, in a box too.
    3. Else the last id or words behind a word for choosing: "Answer: 4", "I choose action 4, as 5 loses".
    4. Else the last words of an action, in the last line ("I will bet now"); then those of more than one word
       in all the text; then the last id that is called one ("so action 4 it is", "I play 4").
    Any other number in running text ("there are 3 rows") does not count. The problem of an id that is not
    legal is "illegal", that of a text without an answer "no_action". Case, spaces, LaTeX, and full stops do
    not matter, unless two actions differ by them alone. After a closing </think> only what follows it is
    read, if anything does. Without a box, the last READ_CHARACTERS are read.
    """
    thought, closed, answer = text.rpartition("</think>")
    if closed and answer.strip():
        text = answer
    reader = _Reader(words)
    for content in _boxes(text):
        answer_id = reader.read(content)
        if answer_id is not None:
            return reader.judge(answer_id)
        if plain(content) not in _PLACEHOLDERS:
            held = " ".join(content.split())
            held = held if len(held) <= 60 else held[:60] + "..."
            reason = f"The box holds {held!r}, which names no legal action; {reader.legal()}"
            return ParsedAnswer(None, "no_action", reason)
    answer_id = reader.search(text[-READ_CHARACTERS:])
    if answer_id is None:
        return ParsedAnswer(None, "no_action", f"The answer names no action; {reader.legal()}")
    return reader.judge(answer_id)


def plain(text: str) -> str:
    """Return words and signs in lower case, one space apart, without LaTeX, mark-up and full stops."""
    tokens = _TOKEN.findall(_COMMAND.sub(" ", text.replace("->", "→")).casefold())
    return " ".join(token for token in tokens if token not in _DROPPED)


def _boxes(text: str) -> list[str]:
    """Return the contents of the last boxes, the last first; an unclosed one ends with its line."""
    starts = [match.end() for match in _BOX.finditer(text)][-READ_BOXES:]
    return [_inside(text[start : start + BOX_CHARACTERS]) for start in reversed(starts)]


def _inside(text: str) -> str:
    depth = 1
    for brace in re.finditer(r"[{}]", text):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[: brace.start()]
    return text.partition("\n")[0]


class _Reader:
    """A reader that looks for the legal actions of a state, and returns an id, legal or not, or None."""

    def __init__(self, words: Mapping[int, str]) -> None:
        self.words = words

    @cached_property
    def plain(self) -> dict[str, int]:
        """Return {plain words: action}, without words that two actions share."""
        keys = {action: plain(name) for action, name in self.words.items()}
        counts = Counter(keys.values())
        return {key: action for action, key in keys.items() if key and counts[key] == 1}

    def legal(self) -> str:
        return f"legal: {shortened(self.words)}."

    def judge(self, answer_id: int | str) -> ParsedAnswer:
        if isinstance(answer_id, int) and answer_id in self.words:
            return ParsedAnswer(answer_id, None, "")
        return ParsedAnswer(None, "illegal", f"Action {answer_id} is not legal here; {self.legal()}")

    def read(self, content: str) -> int | str | None:
        """Read a box: only the answer, or a sentence with it."""
        answer = self.alone(content)
        return self.in_sentence(plain(content), short=True) if answer is None else answer

    def search(self, text: str) -> int | str | None:
        """Read free text without a box."""
        lines = [line for line in text.splitlines() if line.strip()]
        if not lines:
            return None
        last = plain(lines[-1])
        for answer in (self.alone(text), self.alone(lines[-1]), self.chosen(plain(text), _CHOICE)):
            if answer is not None:
                return answer
        answer = self.in_sentence(last, short=True)
        return self.in_sentence(plain(text), short=False) if answer is None else answer

    def alone(self, text: str) -> int | str | None:
        """Read a text that is an id, the words of an action, or a part that only one action's words have."""
        text = _BULLET.sub("", text.strip())
        if len(text) > BOX_CHARACTERS:
            return None
        if _NUMBER.fullmatch(text):
            return _as_id(text)
        wrapped = _WRAPPED.fullmatch(text)
        exact = {name: action for action, name in self.words.items()}
        for name in (text, wrapped[1] if wrapped else ""):
            if name in exact:
                return exact[name]
        sentence = plain(text)
        if sentence in self.plain:
            return self.plain[sentence]
        sentence = _LABEL.sub("", sentence)
        if _PLAIN_NUMBER.fullmatch(sentence):
            return _as_id(sentence)
        leading = _LEADING.match(text)
        if leading:
            return _as_id(leading[1])
        holders = [action for name, action in self.plain.items() if f" {sentence} " in f" {name} "]
        return holders[0] if sentence and len(holders) == 1 else None

    def in_sentence(self, sentence: str, *, short: bool) -> int | str | None:
        answer = self.chosen(sentence, _CHOICE)
        if answer is None:
            answer = self.last_words(sentence, short=short)
        return self.chosen(sentence, _MENTION) if answer is None else answer

    def chosen(self, sentence: str, cue: re.Pattern[str]) -> int | str | None:
        """Return the id or the words right after the last cue that is followed by one."""
        for match in reversed(list(cue.finditer(sentence))):
            numeral = _PLAIN_NUMBER.match(sentence, match.end())
            if numeral:
                return _as_id(numeral[0])
            rest = f"{sentence[match.end() : match.end() + BOX_CHARACTERS]} "
            names = [name for name in self.plain if rest.startswith(f"{name} ")]
            if names:
                return self.plain[max(names, key=len)]
        return None

    def last_words(self, sentence: str, *, short: bool) -> int | None:
        """Return the action whose words end last, the longer words where two end together."""
        padded, best = f" {sentence} ", (-1, 0)
        answer = None
        for name, action in self.plain.items():
            at = padded.rfind(f" {name} ") if short or " " in name else -1
            if at >= 0 and (at + len(name), len(name)) > best:
                best, answer = (at + len(name), len(name)), action
        return answer


def _as_id(numeral: str) -> int | str:
    """Return the number, or its first digits where it is too long to be an id."""
    digits = numeral.replace(" ", "")
    return int(digits) if len(digits) <= 9 else digits[:9] + "..."
