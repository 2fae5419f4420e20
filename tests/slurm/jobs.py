"""Jobs on a real SLURM, and what happens to them; run by `make slurm`, minutes each on two cores."""

import os
import signal

from conftest import CLUSTER, Job, Submitter, adapters, call, steps, wait_for

from rlnb.run.directory import MOST_IDLE_ATTEMPTS, read_status


def test_a_run_is_submitted_and_its_state_and_log_are_where_submit_says(submit: Submitter):
    job = submit()
    wait_for(lambda: job.state != "PENDING", "the start")
    job.wait_end()
    assert submit.runs() == {str(job.directory): "done"}
    assert f"done: {job.directory.relative_to(submit.folder)}/attempt-01.ipynb" in job.log
    assert (job.status.job, job.step) == (job.number, 6)


def test_an_array_runs_its_points_and_the_one_that_fails_says_so_alone(submit: Submitter):
    sweep = submit.folder / "seeds.yaml"
    sweep.write_text("list: [{seed: 1}, {seed: 2}, {seed: 3}, {seed: 4}]\n")
    arguments = {"sbatch": "--array=%2", "training__max_steps": "2"}
    folder = submit.folder / "outputs/ppo_openspiel/seeds-tiny"
    names = [f"seed={seed}" for seed in (1, 2, 3, 4)]
    (folder / names[2]).mkdir(parents=True)
    (folder / names[2] / "checkpoints").write_text("a file where a folder should be")
    array = submit("--sweep", str(sweep), **arguments)
    assert "#SBATCH --array=0-3%2\n" in (folder / "job.sbatch").read_text()
    wait_for(
        lambda: not call("squeue", "--noheader", "--jobs", array.number, check=False).startswith(" "),
        "the end",
    )
    states = [submit.runs()[str(folder / name)] for name in names]
    assert states == ["done", "done", "failed", "done"]
    (folder / names[2] / "checkpoints").unlink()
    submit("--sweep", str(sweep), **arguments)
    assert "#SBATCH --array=2%2\n" in (folder / "job.sbatch").read_text()
    wait_for(lambda: submit.runs()[str(folder / names[2])] == "done", "the point that failed")


def test_a_job_saves_before_its_limit_goes_back_into_the_queue_and_resumes(submit: Submitter):
    job = submit(sbatch="--signal=B:USR1@60", training__max_steps="1000", training__save_steps="999")
    wait_for(lambda: steps(job.directory), "a step")
    job.limit_soon()
    job.wait_restarts(1)
    job.limit(60)
    saved = job.saved
    assert saved > 0
    wait_for(lambda: steps(job.directory)[-1] > saved, "a step of the second attempt")
    call("scancel", job.number)
    job.wait_end("CANCELLED")
    assert steps(job.directory) == list(range(1, steps(job.directory)[-1] + 1))
    assert (job.status.attempt, job.status.first_step) == (2, saved)


def test_a_step_that_outlasts_the_warning_costs_that_step_alone(submit: Submitter):
    job = submit(sbatch="--signal=B:USR1@10", training__max_steps="8")
    job.wait_saved(2)
    job.kernel().send_signal(signal.SIGSTOP)
    saved = job.saved
    job.limit(1)
    job.wait_restarts(1)
    job.limit(60)
    job.wait_end()
    assert (job.status.attempt, job.step) == (2, 8)
    assert job.status.first_step >= saved  # with SIGTERM SLURM sends SIGCONT: a step may just be saved


def test_a_set_up_that_never_fits_ends_after_three_attempts_with_the_reason(submit: Submitter):
    long = {"evaluation__enabled": "true", "evaluation__num_games": "20000"}
    job = submit(sbatch="--time=1 --signal=B:USR1@30", **long)
    job.wait_end("FAILED")
    assert job.facts()["Restarts"] == "3"  # the fourth attempt ends at once
    assert submit.runs() == {str(job.directory): "failed"}


def test_a_job_that_is_cancelled_stays_dead_and_the_same_command_goes_on(submit: Submitter):
    job = submit(training__max_steps="12")
    job.wait_saved(2)
    call("scancel", job.number)
    job.wait_end("CANCELLED")
    saved = job.saved
    assert submit.runs() == {str(job.directory): "preempted"}
    again = submit(training__max_steps="12")
    assert again.directory == job.directory
    again.wait_end()
    assert steps(again.directory) == list(range(1, 13))
    assert (again.status.attempt, again.status.first_step) == (2, saved)


def preempt(job: Job) -> None:
    """Let a job of the partition that comes first take all cores for a moment."""
    before = int(job.facts()["Restarts"])
    cores = f"--cpus-per-task={os.cpu_count()}"
    call("sbatch", "--partition=high", cores, "--mem=100", "--output=/dev/null", "--wrap=true")
    job.wait_restarts(before + 1)


def test_twenty_preemptions_in_a_row_change_nothing_of_what_is_learned(submit: Submitter):
    length = {"training__max_steps": "400"}
    whole = submit(**length, training__save_steps="400")
    whole.wait_end()
    job = submit("--out", "outputs/preempted", **length)
    for times in range(1, 21):
        job.wait_step_of(attempt=times)
        preempt(job)
        assert job.facts()["Restarts"] == str(times)
    job.wait_end()
    assert job.status.attempt == 21 and "SIGTERM: passed on to the kernel" in job.log
    assert steps(job.directory) == steps(whole.directory)
    assert adapters(job.directory) == adapters(whole.directory)


def test_preemptions_told_by_the_signal_of_the_limit_are_not_taken_for_it(submit: Submitter):
    long = {"evaluation__enabled": "true", "evaluation__num_games": "20000"}  # no step is ever saved
    job = submit(sbatch="--partition=graced", **long)
    for times in range(1, MOST_IDLE_ATTEMPTS + 2):

        def is_running(attempt: int = times) -> bool:
            status = read_status(job.directory)
            return status is not None and (status.attempt, status.state) == (attempt, "running")

        wait_for(lambda: is_running() or not job.is_alive(), f"attempt {times}")
        assert is_running(), job.log
        preempt(job)
    assert job.status.idle_attempts == 0 and "SIGUSR1: passed on to the kernel" in job.log


def test_a_kernel_that_is_killed_fails_the_job_and_the_same_command_goes_on(submit: Submitter):
    job = submit(training__max_steps="8")
    job.wait_saved(2)
    job.kernel().kill()
    job.wait_end("FAILED")
    assert job.facts()["ExitCode"] == "138:0"
    state = submit.runs()[str(job.directory)]
    assert state.startswith("died at step ")
    again = submit(training__max_steps="8")
    again.wait_end()
    assert again.directory == job.directory


def test_a_node_that_fails_gives_its_job_back_and_it_resumes(submit: Submitter):
    job = submit(training__max_steps="10")
    job.wait_saved(2)
    run = job.run_process()
    script = run.parent()
    assert script is not None
    daemon = script.parent()
    assert daemon is not None
    assert daemon.name() == "slurmstepd"
    processes = [daemon, *daemon.children(recursive=True)]
    call(CLUSTER, "reboot", *[str(each.pid) for each in processes])
    assert submit.runs()[str(job.directory)].split(" at ")[0] in ("died", "waiting")
    job.wait_restarts(1)
    job.wait_end()
    assert (job.status.attempt, job.step) == (2, 10)


def test_ranks_on_two_tasks_of_slurm_train_together_and_save_at_a_warning_and_at_a_cancel(submit: Submitter):
    held = submit(sbatch="--hold", training__max_steps="200")  # makes the directory
    call("scancel", held.number)
    options = {"sbatch": "--nodes=2 --signal=B:USR1@60", "training__max_steps": "200"}
    printed = submit.rlnb("submit", "--dry-run", **options)
    # One node has both tasks here, which is all that differs from two nodes.
    text = printed[printed.index("#!/bin/bash") :].partition("Not submitted.")[0]
    script = held.directory / "job.sbatch"
    script.write_text(
        text.replace("--nodes=2\n", "--nodes=1\n").replace("--ntasks-per-node=1\n", "--ntasks=2\n")
    )
    job = Job(call("sbatch", "--parsable", str(script)).strip(), held.directory)
    submit.jobs.append(job.number)
    job.wait_saved(2)
    assert (job.directory / "attempt-01.rank1.ipynb").exists()
    job.limit_soon()
    job.wait_restarts(1)
    assert (job.status.state, job.status.signal) == ("preempted", "SIGUSR1")
    job.limit(60)
    job.wait_saved(job.saved + 1)
    call("scancel", job.number)
    job.wait_end("CANCELLED")
    assert (job.status.state, job.status.exit, job.step) == ("preempted", 85, job.saved)
