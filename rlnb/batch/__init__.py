"""Many runs: sweeps over parameters and seeds, their table, and what submits and watches them."""
