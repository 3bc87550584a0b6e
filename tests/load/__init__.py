"""Load on the server, with clients that behave well and clients that do not.

    cd tests && PYTHONPATH=.. python -m load --seconds 120 -o ../docs/bench/serving/load.json

The server runs in a process of its own, with tasks that need no model, so that each answer can be checked.
"""
