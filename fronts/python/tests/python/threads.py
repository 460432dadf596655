"""Threads of tests."""

import threading


def start(work, arguments):
    """Starts a thread for each argument."""
    threads = [threading.Thread(target=work, args=(argument,)) for argument in arguments]
    for thread in threads:
        thread.start()
    return threads


def join(threads):
    """Waits for all."""
    for thread in threads:
        thread.join()


def in_threads(work, arguments):
    """Does the work for each argument in a thread of its own, and waits for all."""
    join(start(work, arguments))
