"""Advantages: how much better a trajectory or a turn went than expected, an estimator a file.

An estimator takes trajectories and baselines, {"game/role": mean return}, and returns the advantage of each
turn, float (num_turns,), trajectory after trajectory, and the baselines of the next update, equal on all
ranks. In a zero-sum game of two players who share their weights the mean of all returns is 0 in every batch,
so one baseline for both roles has no effect: role, leave_one_out and group look at one role.
"""
