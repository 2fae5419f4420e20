"""`rlnb configure`: a profile from questions and answers, or all parameters as YAML to edit."""
