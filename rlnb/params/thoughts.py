"""How models mark where their thoughts begin and end."""

import re

THINK = r"(?:think(?:ing)?|thoughts?|reasoning|scratchpad|seed:think)"
# Tokens that begin and end thoughts as such tags do, of Mistral, Kimi, Cohere, Gemma and others.
BEGIN_THOUGHT = r"\[THINK\]|◁think▷|<\|(?:start_thinking|begin_of_thought|inner_prefix)\|>|<\|channel>"
END_THOUGHT = r"\[/THINK\]|◁/think▷|<\|(?:end_thinking|end_of_thought|inner_suffix)\|>|<channel\|>"
THOUGHT_TOKEN = re.compile(rf"</?{THINK}>|{BEGIN_THOUGHT}|{END_THOUGHT}", re.IGNORECASE)
