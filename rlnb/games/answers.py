"""An answer in a player's own words, read back as one of the legal actions."""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from rlnb.source_code.checks import normalise
from rlnb.source_code.extraction import split_thoughts

# Only the end of a long text is read for an answer without a box, and only the last boxes: the last answer
# counts, and the time to find it must not grow with what a hostile text repeats.
READ_CHARACTERS = 4000
READ_BOXES = 20
BOX_CHARACTERS = 400
MOST_NAMED = 12  # legal actions in a reason
Problem = Literal["no_action", "illegal", "cut"]

_BOX = re.compile(r"boxed:?\s{0,4}(?:([{\[(])|(?=[0-9]))", re.IGNORECASE)
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_NAMES = r"(?:final_?)?(?:answer|action|move|choice|box|id)"
# In tags, which may be cut off, and as the value of a key in JSON.
_TAG = re.compile(
    rf"<{_NAMES}>([^<]{{0,400}})|\A([^<]{{0,400}})</{_NAMES}>|\[{_NAMES}\]([^\[]{{0,400}})"
    rf"|\"{_NAMES}\"\s{{0,4}}:\s{{0,4}}(?:\"([^\"{{}}]{{1,60}})|([^\",{{}}]{{1,60}}))",
    re.IGNORECASE,
)
_COMMAND = re.compile(r"\\(?!boxed)[A-Za-z]+\s{0,4}|\\[^A-Za-z]|</\w{1,20}>")
_WRAPPED = re.compile(r"\\[A-Za-z]+\{(.*)\}", re.DOTALL)  # \text{...}
_BRACKETS = str.maketrans("【】〔〕「」『』«»⟨⟩", "[][][][][][]", "\ufe0f\u20e3")  # and none around a digit
_END = re.compile(r"<[|｜][^<>|｜]{1,32}[|｜]>|</s>|<eos>|<end_of_turn>|</?response>")
# "4.5" and a square such as "2,2", "(2, 2)" or "2-2" are one token and no id.
_TOKEN = re.compile(r"\n|->|[0-9]+(?:(?:[.,-]|, (?=[0-9]+[)\]}]))[0-9]+)+|[^\W_]+|[^\w\s]")
_BULLET = re.compile(r"^(?:[-*•→✅✔]|\[[ xX✓✔]?\])\s+")
_WHOLE_DECIMAL = re.compile(r"(?<![\w.])([0-9]+)\.0+(?!\w|\.[0-9])")
_GLUED = re.compile(r"\b(answer|action|id|option|choice|move|number)(?=[0-9])", re.IGNORECASE)
_NUMBER = re.compile(r"(?:[+-] ?)?[0-9]+")
_LABEL = re.compile(
    r"^(?:(?:cell|position) (?=[0-9]+$)"
    r"|(?:(?:my|the|final|answer|action|id|option|choice|move|number|is|:|=|a(?= :)) )+)"
)
_TEXT = re.compile(r"\\(?:text\w*|math\w+|q?quad|[,;:! ])\s{0,4}|\{")
_LEADING = re.compile(
    r"[*`$\"'\[(<]*([+-]?[0-9]+)[*`$\"'\])>]*\s*(?:->|[→=:(]|[,–—-](?! ?[0-9])|(?:because|since|as)\b)"
)
_PLACEHOLDERS = ("", "id", "the id", "action id", "action", "number", "…")
_DROPPED = frozenset("\\.,;!?*$'\"`{}[]()<>#_“”‘’\n")
_ENDS_SENTENCE = frozenset(".!?\n")
_ENDS_CLAUSE = _ENDS_SENTENCE | {*",;:—–", "so", "but", "therefore"}
# A word for choosing or naming an action, then words that only join: "I choose the action", "my id is".
_CUE = re.compile(
    r"\b(?:(answer|choice|choose|chose|chosen|pick|select|go with|decide on)|play|action|move|id|option)"
    r"(?: (?:is|:|=|would|will|be|to|the|a|my|action|move|id|number|option|→))*$"
)
_LISTING = frozenset(("or", "and", "/", "|", "-", "–", "—"))
_BEHIND_ID = frozenset(("→", ":", "=", "because", "since", "as"))
# Words that undo a choice behind them in the clause ("t": of don't), and that leave a sentence unclear.
_DENIAL = re.compile("not|t|dont|cant|wont|never|cannot|avoid|if|unless|when|whether")
_DOUBT = re.compile(
    f"{_DENIAL.pattern}|no|instead|rather|than|or|nor|neither|without|he|she|they|opponent|loses|risky|bad"
)


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
    r"""Return the action that a text names. words: {legal id: words}; words that two share name neither.

    1. Only what follows the thoughts is read, and an open thought is no answer.
    2. A box or a tag beats all other text, and the last one that holds an answer counts: `\boxed{4}`,
       `\boxed[bet]`, `<answer>4</answer>`, `\boxed{\text{Action 4.}}`. One that is empty or repeats the
       prompt's "id" is passed over. One that holds anything else, or several actions, is a failed answer,
       whatever surrounds it. Text in a box, and a text without one, is read by the next rules.
    3. The whole text or its last line as an id or words: "4", "**4.**", "[4]", "4 -> bet", "d3". A part that
       only one action's words have means that action.
    4. Else the last id or words behind a word for choosing: "Answer: 4", "I choose action 4, as 5 loses".
    5. Else the one action that all the text names, by words or by an id that is called one ("I play 4"),
       where no sentence that names it denies, compares, or doubts. Several actions are no answer.

    In 2, 3 and 4 the last answer is none where the one before it is another action in the same form: that is
    a list. The problem of an id that is not legal is "illegal", that of a text without an answer "no_action".
    Case, spaces, LaTeX, brackets, full stops, and full width do not matter, unless two actions differ by them
    alone. Without a box, the last READ_CHARACTERS are read. is_cut: the text goes on, so it is answered only
    by a box or tag that has ended; else its problem is "cut".
    """
    parts, is_thinking = split_thoughts(text.replace("<answer>", "<action>"))
    if is_thinking:
        parts, is_thinking = split_thoughts(text)  # an answer's tag ends a thought
    if is_thinking or parts[-1].strip():
        text = "" if is_thinking else parts[-1]
    text, reader = _normalise(text), _Reader(words)
    boxes = [box for box in _boxes(text) if plain(text[slice(*box)]) not in _PLACEHOLDERS]
    if is_cut and boxes and boxes[-1][1] == len(text):
        del boxes[-1]
    if is_cut and not boxes:
        return ParsedAnswer(None, "cut", "The answer was cut before its box.")
    if not boxes:
        return reader.judge(reader.search(text[-READ_CHARACTERS:]))
    answers = [_Found(reader.search(text[slice(*box)]), *box) for box in boxes[-2:]]
    if answers[-1].answer is None:
        held = " ".join(text[slice(*boxes[-1])].split())
        held = held if len(held) <= 60 else held[:60] + "..."
        return reader.judge(None, f"The box holds {held!r}, which names no legal action")
    return reader.judge(_last(text, [each for each in answers if each.answer is not None]))


def plain(text: str) -> str:
    """Return words and signs in lower case, one space apart, without LaTeX, mark-up and full stops."""
    return " ".join(token.word for token in _tokens(_normalise(text)))


def _normalise(text: str) -> str:
    """Return a text without tokens that end it, and with "４", "4.0" and "Action4" as "4" and "Action 4"."""
    text = normalise("NFKC", _END.sub(" ", text)).translate(_BRACKETS)
    return _GLUED.sub(r"\1 ", _WHOLE_DECIMAL.sub(r"\1", text))


def _boxes(text: str) -> list[tuple[int, int]]:
    """Return the places of what the last boxes and tags hold; an unclosed box ends with its line."""
    marks = sorted([*_BOX.finditer(text), *_TAG.finditer(text)], key=lambda match: match.start())
    return [_inside(text, mark) for mark in marks[-READ_BOXES:]]


def _inside(text: str, mark: re.Match[str]) -> tuple[int, int]:
    if mark.re is _TAG:
        return mark.span(mark.lastindex or 0)
    start, opening = mark.end(), mark[1]
    text = text[start : start + BOX_CHARACTERS]
    if not opening:
        return start, start + len(text.split()[0])
    depth = 1
    for bracket in re.finditer(re.escape(opening) + "|" + re.escape(_CLOSING[opening]), text):
        depth += 1 if bracket[0] == opening else -1
        if depth == 0:
            return start, start + bracket.start()
    return start, start + len(text.partition("\n")[0])


class _Token(NamedTuple):
    """A word or sign in lower case, its place in the text, and the numbers of its clause and sentence."""

    word: str
    start: int
    end: int
    clause: int
    sentence: int


def _tokens(text: str) -> list[_Token]:
    tokens, clause, sentence = [], 0, 0
    for match in _TOKEN.finditer(_COMMAND.sub(lambda command: " " * len(command[0]), text)):
        word = match[0].casefold().replace("->", "→").replace(" ", "")
        clause += word in _ENDS_CLAUSE
        sentence += word in _ENDS_SENTENCE
        if word not in _DROPPED:
            tokens.append(_Token(word, match.start(), match.end(), clause, sentence))
    return tokens


class _Found(NamedTuple):
    """An answer and its place in a text, read from a box, an action's words or a number.

    counts: whether the text means an action. follows: directly behind the mention before it ("4 or 5").
    """

    answer: int | str | None
    start: int
    end: int
    counts: bool = True
    follows: bool = False
    is_chosen: bool = False
    is_doubted: bool = False


def _last(text: str, answers: list[_Found]) -> int | str | None:
    """Return the last answer, unless it ends a list: "I pick 4, I pick 5", each in the same words."""
    if len(answers) > 1:
        before, last = answers[-2:]
        between = [word for word in plain(text[before.end : last.start]).split() if word not in _LISTING]
        ahead = plain(text[: before.start][-BOX_CHARACTERS:]).split()
        if before.answer != last.answer and ahead[max(0, len(ahead) - len(between)) :] == between:
            return None
    return answers[-1].answer if answers else None


class _Reader:
    """A reader that looks for the legal actions of a state, and returns an id, legal or not, or None."""

    def __init__(self, words: Mapping[int, str]) -> None:
        self.words = words

    @cached_property
    def plain(self) -> dict[str, int | None]:
        """Return {plain words: action}, None for words that two actions share."""
        keys = {action: plain(name) for action, name in self.words.items()}
        counts = Counter(keys.values())
        return {key: action if counts[key] == 1 else None for action, key in keys.items() if key}

    @cached_property
    def most_words(self) -> int:
        return max((len(name.split()) for name in self.plain), default=1)

    def judge(self, answer: int | str | None, failure: str = "The answer names no action") -> ParsedAnswer:
        if isinstance(answer, int) and answer in self.words:
            return ParsedAnswer(answer, None, "")
        reason = failure if answer is None else f"Action {answer} is not legal here"
        problem: Problem = "no_action" if answer is None else "illegal"
        return ParsedAnswer(None, problem, f"{reason}; legal: {shortened(self.words)}.")

    def search(self, text: str) -> int | str | None:
        """Read what a box holds, or a text without one."""
        above, last = ["", "", *(line for line in text.splitlines() if line.strip())][-2:]
        answer = self.alone(text)
        if answer is None:
            listed = {self.alone(part) for part in (above, above.rpartition(":")[2])} & self.words.keys()
            answer = self.alone(last)
            answer = answer if listed <= {answer} else None
        if answer is None:
            mentions = self.mentions(text)
            answer = _last(text, [each for each in mentions if each.is_chosen])
            named = [each for each in mentions if each.counts]
            if answer is None and not any(each.is_doubted for each in named):
                actions = {each.answer for each in named}
                answer = actions.pop() if len(actions) == 1 else None
        return answer

    def alone(self, text: str) -> int | str | None:
        """Read a text that is an id, the words of an action, or a part that only one action's words have."""
        text = _BULLET.sub("", text.strip())
        if len(text) > BOX_CHARACTERS:
            return None
        if _NUMBER.fullmatch(text):
            return _as_id(text)
        wrapped = _WRAPPED.fullmatch(text)
        for action, name in self.words.items():
            if text in (name, f"{action} -> {name}") or (wrapped and name == wrapped[1]):
                return action
        sentence = plain(text)
        if sentence in self.plain:
            return self.plain[sentence]
        sentence = _LABEL.sub("", sentence)
        if _NUMBER.fullmatch(sentence):
            return _as_id(sentence)
        leading = _LEADING.match(_TEXT.sub("", text))
        if leading and "\n" not in text:
            named = {each.answer for each in self.mentions(text) if each.counts or each.follows}
            return _as_id(leading[1]) if named <= {_as_id(leading[1])} else None
        holders = [action for name, action in self.plain.items() if f" {sentence} " in f" {name} "]
        return holders[0] if sentence and len(holders) == 1 else None

    def mentions(self, text: str) -> list[_Found]:
        """Return the actions' words and the numbers in a text, whether they count or not."""
        tokens = _tokens(text)
        words = [token.word for token in tokens]
        vague = {token.sentence for token in tokens if _DOUBT.fullmatch(token.word)}
        mentions: list[_Found] = []
        before = _Found(None, 0, 0, counts=False)
        index, last, denied = 0, 0, -1  # denied: the last clause with a denial
        while index < len(tokens):
            size, answer = self.named_at(words, index)
            if size:
                token, end = tokens[index], tokens[index + size - 1].end
                cue = _CUE.search(" ".join(words[last:index]))
                follows = bool(mentions) and tokens[last - 1].sentence == token.sentence
                follows = follows and _LISTING.issuperset(words[last:index])
                is_marked = text[max(0, token.start - 1) : end + 1] in (
                    f"[{token.word}]",
                    f"{{{token.word}}}",
                )
                is_marked = is_marked or not _BEHIND_ID.isdisjoint(words[index + 1 : index + 2])
                is_named = size > 1 or not token.word.isdecimal() or bool(cue)
                counts = is_named or is_marked or (follows and before.counts)
                if follows and counts:
                    mentions[-1] = before._replace(counts=True)
                is_chosen = (follows and before.is_chosen) or bool(cue and cue[1] and token.clause != denied)
                before = _Found(answer, token.start, end, counts, follows, is_chosen, token.sentence in vague)
                mentions.append(before)
                last = index + size
            elif _DENIAL.fullmatch(words[index]):
                denied = tokens[index].clause
            index += size or 1
        return mentions

    def named_at(self, words: list[str], index: int) -> tuple[int, int | str | None]:
        """Return the number of words that name an action here, the most possible or 0, and the action."""
        for size in range(min(self.most_words, len(words) - index), 0, -1):
            name = " ".join(words[index : index + size])
            if name.isdecimal() or name in self.plain:
                return size, _as_id(name) if name.isdecimal() else self.plain[name]
        return 0, None


def _as_id(numeral: str) -> int | str:
    """Return the number, or its first digits where it is too long to be an id."""
    digits = numeral.replace(" ", "")
    return int(digits) if len(digits) <= 9 else digits[:9] + "..."
