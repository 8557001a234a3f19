"""What each engine family can do, and how it is asked."""

from __future__ import annotations

from collections.abc import Mapping

from .capabilities import Capabilities, OptionalParameter
from .family import EngineFamily, StartWave, UnsupportedEngineError
from .request import Constraint, ConstraintKind, GenerationRequest, SamplingParams
from .tokenspeed import RequestForm, TokenSpeed
from .vllm import MOST_LOGPROBS, VLLM, ConstraintBackend

__all__ = [
    "FAMILIES",
    "MOST_LOGPROBS",
    "VLLM",
    "Capabilities",
    "Constraint",
    "ConstraintBackend",
    "ConstraintKind",
    "EngineFamily",
    "GenerationRequest",
    "OptionalParameter",
    "RequestForm",
    "RuntimeOptionError",
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
    request_form: RequestForm | None = None,
    vllm_version: str | None = None,
    structured_outputs_backend: ConstraintBackend | None = None,
    max_logprobs: int | None = None,
) -> EngineFamily:
    """The family of this name. What is not given has the family's default.

    Parameters
    ----------
    request_form
        See ``TokenSpeed``.
    vllm_version, structured_outputs_backend, max_logprobs
        See ``VLLM``.

    Raises
    ------
    ValueError
        An unknown name, something that is given and means nothing to the family, or a version of vLLM whose wire is not
        known.
    """
    of_tokenspeed = {"--request-form": request_form}
    of_vllm = {
        "--vllm-version": vllm_version,
        "--structured-outputs-backend": structured_outputs_backend,
        "--max-logprobs": max_logprobs,
    }
    if name == VLLM.name:
        _refuse(of_tokenspeed, TokenSpeed.name, name)
        logprobs = 20 if max_logprobs is None else max_logprobs
        return VLLM(vllm_version, structured_outputs_backend or "guidance", logprobs)
    if name == TokenSpeed.name:
        _refuse(of_vllm, VLLM.name, name)
        return TokenSpeed(request_form or "tagged")
    raise ValueError(f"unknown runtime {name!r}; known: {', '.join(FAMILIES)}")


class RuntimeOptionError(ValueError):
    """An option that is given, and is another family's. ``parameter`` is its name in ``family``."""

    def __init__(self, option: str, of: str, runtime: str) -> None:
        super().__init__(f"{option} is an option of the runtime {of}, and this one is {runtime}")
        self.parameter = option.removeprefix("--").replace("-", "_")


def _refuse(options: Mapping[str, object], of: str, name: str) -> None:
    for option, value in options.items():
        if value is not None:
            raise RuntimeOptionError(option, of, name)
