"""What each engine family can do, and how it is asked."""

from __future__ import annotations

from .capabilities import Capabilities, OptionalParameter
from .family import EngineFamily, StartWave, UnsupportedEngineError
from .request import Constraint, ConstraintKind, GenerationRequest, SamplingParams
from .tokenspeed import RequestForm, TokenSpeed
from .vllm import VLLM, ConstraintBackend

__all__ = [
    "FAMILIES",
    "VLLM",
    "Capabilities",
    "Constraint",
    "ConstraintBackend",
    "ConstraintKind",
    "EngineFamily",
    "GenerationRequest",
    "OptionalParameter",
    "RequestForm",
    "SamplingParams",
    "StartWave",
    "TokenSpeed",
    "UnsupportedEngineError",
    "family",
]

#: What ``--runtime`` may say.
FAMILIES = (VLLM.name, TokenSpeed.name)


def family(
    name: str,
    *,
    request_form: RequestForm = "tagged",
    vllm_version: str | None = None,
    structured_outputs_backend: ConstraintBackend = "guidance",
    max_logprobs: int = 20,
) -> EngineFamily:
    """The family of this name.

    Parameters
    ----------
    request_form
        See ``TokenSpeed``.
    vllm_version, structured_outputs_backend, max_logprobs
        See ``VLLM``.

    Raises
    ------
    ValueError
        An unknown name, or a version of vLLM whose wire is not known.
    """
    if name == VLLM.name:
        return VLLM(vllm_version, structured_outputs_backend, max_logprobs)
    if name == TokenSpeed.name:
        return TokenSpeed(request_form)
    raise ValueError(f"unknown runtime {name!r}; known: {', '.join(FAMILIES)}")
