"""In which order programs run: at random, equal ones once, neighbours on a worker of different groups."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from rlnb.sandbox import Sandbox
from rlnb.sandbox.runner import Waiting

jobs_and_groups = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=40)


@given(jobs_and_groups)
def test_a_worker_gets_each_job_once_and_a_group_again_only_where_no_other_is_left(pairs):
    group_of = dict(pairs)
    waiting = Waiting([job for job, _ in pairs], [group for _, group in pairs])
    last, taken = None, []
    while waiting:
        left = set(group_of) - set(taken)
        group, job = waiting.take(last)
        assert group == group_of[job]
        assert group != last or {group_of[other] for other in left} == {last}
        taken.append(job)
        last = group
    assert sorted(taken) == sorted(group_of)


def test_jobs_run_in_a_random_order_and_their_results_come_in_the_order_given():
    ran, lock = [], threading.Lock()

    def run(job):
        with lock:
            ran.append(job)
        return -job

    with Sandbox(num_workers=2, require="none") as sandbox:
        assert sandbox.map(run, [*range(40), 7]) == [*(-job for job in range(40)), -7]
        assert sorted(ran) == list(range(40)) != ran
        chance = "import os; print(os.urandom(8))"
        first, _, second = sandbox.run_many([chance, "print(1)", chance], groups="aab")
    assert first is second
