"""How models mark where their thoughts begin and end."""

import re

THINK = r"(?:think(?:ing)?|thoughts?|reasoning|scratchpad|seed:think)"
# Tokens that begin and end thoughts as such tags do, of Mistral, Kimi, Cohere, Gemma and others.
THOUGHT_MARKS = {
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
    "<|START_THINKING|>": "<|END_THINKING|>",
    "<|begin_of_thought|>": "<|end_of_thought|>",
    "<|inner_prefix|>": "<|inner_suffix|>",
    "<|channel>": "<channel|>",
    "<start_working_out>": "<end_working_out>",
}
BEGIN_THOUGHT, END_THOUGHT = (
    "|".join(map(re.escape, tokens)) for tokens in (THOUGHT_MARKS.keys(), THOUGHT_MARKS.values())
)
THOUGHT_TOKEN = re.compile(rf"</?{THINK}>|{BEGIN_THOUGHT}|{END_THOUGHT}", re.IGNORECASE)
