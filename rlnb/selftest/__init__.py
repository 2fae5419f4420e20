"""`rlnb doctor --selftest`: short trials of every path of a training on this machine."""
