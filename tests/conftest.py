"""For all tests."""

import signal

import pytest


@pytest.fixture(autouse=True, scope="session")
def signals_are_heard():
    """Under nohup, or in the background of a script, this process and its children would ignore some."""
    before = {
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
