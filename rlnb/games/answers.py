"""An answer in a player's own words, read back as one of the legal actions."""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from rlnb.source_code.checks import normalise
from rlnb.source_code.extraction import split_thoughts

READ_CHARACTERS = 4000  # the end of a text: the time to read it must not grow with what a hostile one repeats
MOST_NAMED = 12  # legal actions in a reason
Problem = Literal["no_action", "illegal", "cut"]

# \boxed{4}, \boxed{\text{Action 4}}, \boxed[4], \boxed 4, <answer>4</answer>; one without an end goes on to
# the end of its line.
_BOX = re.compile(
    r"boxed:?\s{0,4}(?:\{((?:[^{}\n]|\{[^{}\n]*\})*)(?:\}|$)|[\[(]([^\])\n]*)(?:[\])]|$)|([0-9]+))"
    r"|(?:<(?:answer|action|move)>|\A(?=[^<]*</answer>))([^<]*)(?:</|$)",
    re.IGNORECASE | re.MULTILINE,
)
_PLACEHOLDERS = ("", "id")  # as the prompt writes it
# Behind these words stands the answer of a text without a box, unless they are denied.
_CUE = re.compile(
    r"(?<!not )(?<!n't )\b(?:answer|choose|choice|pick|select|play|action|move)\b"
    r"(?:[\s:=*_]|\b(?:is|the|to|a|my|action|move|id|number)\b)*",
    re.IGNORECASE,
)
_LABEL = re.compile(
    r"^(?:i |(?:my|the|to|final|legal|answer|action|choose|choice|id|option|move|number|is)(?: |(?=[0-9])))+"
)
_LATEX = re.compile(r"\\[A-Za-z]+")
_WHOLE_DECIMAL = re.compile(r"(?<![\w.])([0-9]+)\.0+(?![\w.])")
_SIGNS = re.compile(r"->|[].,:;!?*$'\"`{}()<>#=_“”‘’«»→【】[]")
_ID = re.compile(r"[+-]?[0-9]+")
_CLAUSE_END = re.compile(r"[;\n]|[.,](?!\s*[0-9])")
_EXPLAINED_ID = re.compile(r"([+-]?[0-9]+)(?: (?:as|because|since)\b.*)?")


@dataclass(frozen=True)
class ParsedAnswer:
    """action: a legal id, or None with the problem and a reason that a player understands ("" when fine)."""

    action: int | None
    problem: Problem | None
    reason: str


def shortened(actions: Collection[int]) -> str:
    """Return '0, 1, 2', or the first ones and how many more there are."""
    named = ", ".join(map(str, list(actions)[:MOST_NAMED]))
    return named if len(actions) <= MOST_NAMED else f"{named} and {len(actions) - MOST_NAMED} more"


def parse_answer(text: str, words: Mapping[int, str], *, is_cut: bool = False) -> ParsedAnswer:
    r"""Return the action that a text names. words: {legal id: words}, no two with the same words.

    1. Only what follows the thoughts is read, and an open thought is no answer.
    2. The last box or tag decides: `\boxed{4}`, `\boxed{\text{bet}}`, `<answer>4 -> bet</answer>`. An
       empty one is passed over, and one with the prompt's "id"; one that holds anything else is a failed
       answer.
    3. A text without one is answered by its last line, if that is an id or the words of an action ("4.",
       "Action 4", "4 -> bet", "bet") and the line above is none, or by what follows the last "I choose" or
       "Answer:".

    The problem of an id that is not legal is "illegal", that of a text without an answer "no_action". Case,
    spaces, LaTeX, signs and full width do not matter, unless two actions differ by them alone. is_cut: the
    text goes on, so it is answered only by a box or tag that has ended; else its problem is "cut".
    """
    parts, is_thinking = split_thoughts(text.replace("<answer>", "<action>"))
    if is_thinking:
        parts, is_thinking = split_thoughts(text)  # an answer's tag ends a thought
    text = "" if is_thinking else normalise("NFKC", parts[-1][-READ_CHARACTERS:])
    named = _plain_words(words)
    boxes = [box for box in _BOX.finditer(text) if _plain(_inside(box)) not in _PLACEHOLDERS]
    if is_cut and boxes and boxes[-1].end() == len(text) and boxes[-1][0][-1] not in "}])/":
        del boxes[-1]
    if is_cut and not boxes:
        return ParsedAnswer(None, "cut", "The answer was cut before its box.")
    failure = "The answer names no action"
    if boxes:
        held = " ".join(_inside(boxes[-1]).split())
        exact = next((action for action, name in words.items() if name == held), None)
        answer = _read(held, named) if exact is None else exact
        failure = f"The box holds {held[:60]!r}, which names no legal action"
    else:
        answer = _search(text, named)
    if isinstance(answer, int) and answer in words:
        return ParsedAnswer(answer, None, "")
    reason = failure if answer is None else f"Action {answer} is not legal here"
    problem: Problem = "no_action" if answer is None else "illegal"
    return ParsedAnswer(None, problem, f"{reason}; legal: {shortened(words)}.")


def _inside(box: re.Match[str]) -> str:
    return str(box[box.lastindex or 0])


def _plain_words(words: Mapping[int, str]) -> dict[str, int | None]:
    """Return {plain words, alone or behind their id: action}, None for those that two actions share."""
    named: dict[str, int | None] = {}
    for action, name in words.items():
        for key in (_plain(name), f"{action} {_plain(name)}"):
            named[key] = None if key in named else action
    return named


def _plain(text: str) -> str:
    """Return words and numbers in lower case, one space apart, without LaTeX and signs."""
    text = _WHOLE_DECIMAL.sub(r"\1", _LATEX.sub(" ", text).casefold())
    return " ".join(_SIGNS.sub(" ", text).split())


def _read(text: str, named: Mapping[str, int | None]) -> int | str | None:
    """Return the id or action that is all of a text, or None. An id need not be legal."""
    said = _plain(text)
    for key in (said, _LABEL.sub("", said)):
        if _ID.fullmatch(key):
            return _as_id(key)
        if key in named:
            return named[key]
    return None


def _search(text: str, named: Mapping[str, int | None]) -> int | str | None:
    """Return the answer of a text without a box."""
    above, last = ["", "", *(line for line in text.splitlines() if line.strip())][-2:]
    answer = _read(last, named)
    if answer is not None:
        return answer if _read(above, named) in (None, answer) else None
    return next((answer for answer in _behind_cues(text, named) if answer is not None), None)


def _behind_cues(text: str, named: Mapping[str, int | None]) -> Iterator[int | str | None]:
    """Yield what follows each cue in its line, the last cue first: an id or the words of an action."""
    for cue in reversed(list(_CUE.finditer(text))):
        line = text[cue.end() :][:400].partition("\n")[0]
        if numeral := _EXPLAINED_ID.fullmatch(_plain(_CLAUSE_END.split(line, maxsplit=1)[0])):
            yield _as_id(numeral[1])
        else:
            said = f"{_plain(line)} "
            ends = [at for at, sign in enumerate(said) if sign == " "]
            yield next((named[said[:end]] for end in reversed(ends) if said[:end] in named), None)


def _as_id(numeral: str) -> int | str:
    """Return the number, or its first digits where it is too long to be an id."""
    return int(numeral) if len(numeral) <= 9 else numeral[:9] + "..."
