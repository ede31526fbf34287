"""Code for a child process that kills itself in the middle of its work."""

from __future__ import annotations

#: ``hit(call)`` is the call; the ``at``-th one of all that were wrapped sends the process a signal, ``number``.
#: The child imports ``os``, and sets ``at``, ``number``, and ``count`` to 0.
HIT = """
def hit(real):
    def called(*arguments, **options):
        global count
        count += 1
        if count == at:
            os.kill(os.getpid(), number)
        return real(*arguments, **options)
    return called
"""
