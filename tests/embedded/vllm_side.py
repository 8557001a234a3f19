"""A gateway's half of vLLM's wire: the project's own codec over the sockets of ``gateway_side``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smg_fast._codec import (
    Dispatcher,
    Output,
    Prompt,
    Protocol,
    ResponseFormat,
    TextOptions,
    TokenIds,
    Tokenizer,
    encode_vllm_request,
)
from smg_fast.embedded import MODEL_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from smg_fast._codec import Wave
    from tests.embedded.gateway_side import Gateway

EOS = 7
VLLM = ("--runtime", "vllm", "--eos-token-id", EOS)
TOKENIZER = Tokenizer.from_file(str(MODEL_DIRECTORY / "tokenizer.json"))


class Client:
    """Sends requests and gathers what becomes of them. Rules are kept unless ``sampling`` says otherwise."""

    def __init__(self, gateway: Gateway, version: str = "0.32.0") -> None:
        self.waves: list[Wave] = []
        self._gateway = gateway
        self._protocol = Protocol.vllm(version)
        self._dispatcher = Dispatcher()
        self._ended: dict[object, Output | str] = {}

    def add(
        self,
        rid: str,
        prompt: Sequence[int],
        *,
        identity: bytes = b"\0\0",
        max_tokens: int = 16,
        stop_token_ids: Sequence[int] = (),
        eos: int | None = EOS,
        **sampling: Any,
    ) -> None:
        frames = encode_vllm_request(
            self._protocol,
            rid,
            TokenIds(prompt),
            max_tokens=max_tokens,
            stop_token_ids=stop_token_ids,
            eos_token_id=eos,
            all_stop_token_ids=[*stop_token_ids, *([] if eos is None else [eos])],
            **{"skip_reading_prefix_cache": "prompt_logprobs" in sampling, **sampling},
        )
        options = TextOptions(
            stop_token_ids=stop_token_ids,
            eos_token_ids=[EOS],
            logprobs=sampling.get("logprobs"),
            prompt_logprobs=sampling.get("prompt_logprobs"),
        )
        self._dispatcher.open(rid, ResponseFormat.outputs(), TOKENIZER, options, [rid], [Prompt(TokenIds(prompt))])
        self._gateway.send(frames, identity)

    def step(self) -> str | None:
        """Takes the next message; returns why it was refused, if it was."""
        outcome = self._dispatcher.feed(self._protocol, [self._gateway.frames()])
        self.waves += outcome.waves
        for rid, outputs, error in outcome.ended:
            assert not isinstance(outputs, bytes)
            self._ended[rid] = outputs[0] if outputs else str(error)
        return outcome.refused

    def result(self, rid: str) -> Output | str:
        """The output, or the error that it ended with."""
        while rid not in self._ended:
            assert self.step() is None
        return self._ended[rid]

    def output(self, rid: str) -> Output:
        result = self.result(rid)
        assert isinstance(result, Output), result
        return result
