"""Load on the server, with clients that behave well and clients that do not.

    PYTHONPATH=tests:tools python -m load --seconds 120 -o load.json
    PYTHONPATH=tests:tools python -m load.cancels -o cancels.json

The server of the first runs in a process of its own, with tasks that need no model, so that each answer can
be checked. The second has only clients that leave, and counts what they leave.
"""
