"""Loaded by every Python whose PYTHONPATH has this folder: write down each attempt to use the network."""

import os
import sys


def note(event: str, arguments: tuple[object, ...]) -> None:
    if event == "socket.getaddrinfo" or (event == "socket.connect" and isinstance(arguments[1], tuple)):
        with open(os.environ["NETWORK_LOG"], "a", encoding="utf-8") as log:
            log.write(f"{event} {arguments[:2]!r}\n")


sys.addaudithook(note)
