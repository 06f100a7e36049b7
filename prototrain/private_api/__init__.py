"""What prototrain uses of TensorFlow and Keras that these do not promise: one function for each need, and nothing else.

No other module of prototrain touches a private name of theirs. `tests/test_private_api.py` says for each function what
it relies on, and fails when a new version has it changed. Where a version lacks a name, the function does what is said
in its place, and the run says so in one line (`lacking`).
"""
