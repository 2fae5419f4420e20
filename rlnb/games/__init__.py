"""Games: their rules, their text, and opponents."""
