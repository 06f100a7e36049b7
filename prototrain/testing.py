"""Checks for users' test suites.

from prototrain.testing import verify

def test_training_resumes_exactly():
    result = verify("models.mine", "-s", "model.batch_size=8", steps=20)
    assert result, str(result)
"""

from prototrain.verify import Difference, ProgramError, Result, verify

__all__ = ["Difference", "ProgramError", "Result", "verify"]
