"""What each engine family can do, and how it is asked."""

from __future__ import annotations

from .capabilities import Capabilities
from .family import EngineFamily
from .request import Constraint, ConstraintKind, GenerationRequest, SamplingParams
from .tokenspeed import RequestForm, TokenSpeed

__all__ = [
    "FAMILIES",
    "Capabilities",
    "Constraint",
    "ConstraintKind",
    "EngineFamily",
    "GenerationRequest",
    "RequestForm",
    "SamplingParams",
    "TokenSpeed",
    "family",
]

#: By the name ``--runtime`` knows them by.
FAMILIES: dict[str, type[TokenSpeed]] = {TokenSpeed.name: TokenSpeed}


def family(name: str, *, request_form: RequestForm = "tagged") -> EngineFamily:
    """The family of this name. Raises ``ValueError``, listing the known ones.

    ``request_form`` is the revision of the wire that requests are written in, where a family has several.
    """
    try:
        made = FAMILIES[name]
    except KeyError:
        raise ValueError(f"unknown runtime {name!r}; known: {', '.join(sorted(FAMILIES))}") from None
    return made(request_form)
