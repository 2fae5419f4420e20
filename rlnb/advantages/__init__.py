"""Advantages: how much better a trajectory or a turn went than expected, an estimator a file.

An estimator takes trajectories and baselines, {"game/role": mean return}, and returns the advantage of each
turn, float (num_turns,), trajectory after trajectory, and the baselines of the next update, equal on all
ranks. The two returns of a zero-sum game cancel, so where both players had a turn one baseline for both roles
is about 0: role, leave_one_out and group look at one role.
"""
