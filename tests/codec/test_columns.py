"""Columns: what Python and numpy see of them."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from smg_fast._codec import Dispatcher, Output, Prompt, Protocol, ResponseFormat, TextOptions, TokenIds, Tokenizer
from tests.codec.ticks import Row, tick


def test_token_ids_are_a_sequence() -> None:
    column = TokenIds([1, 2, 2**32 - 1])
    assert (len(column), column[0], column[-1], list(column), column.tolist()) == (
        3,
        1,
        2**32 - 1,
        [1, 2, 2**32 - 1],
        [1, 2, 2**32 - 1],
    )
    assert column == TokenIds(iter((1, 2, 2**32 - 1)))
    assert hash(column) == hash(TokenIds(column))
    assert column != TokenIds()
    assert (column.max(), TokenIds().max()) == (2**32 - 1, None)
    for index in (3, -4):
        with pytest.raises(IndexError):
            column[index]


@pytest.mark.parametrize(
    ("ids", "error"),
    [([-1], OverflowError), ([2**32], OverflowError), (["a"], TypeError), ([1.5], TypeError), (5, TypeError)],
)
def test_what_is_no_token_id_is_refused(ids: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        TokenIds(ids)  # type: ignore[arg-type]


def test_numpy_sees_the_columns_of_an_output_without_a_copy(tokenizer: Tokenizer) -> None:
    dispatcher = Dispatcher()
    prompts = [Prompt(TokenIds([1]))]
    dispatcher.open("sink", ResponseFormat.outputs(), tokenizer, TextOptions(logprobs=0), ["r"], prompts)
    ids = [5, 6, 7]
    dispatcher.feed(Protocol.tokenspeed(), [tick(Row("r", ids, "", [-0.5, -1e-300, -3.141592653589793]))])
    ((_, outputs, _),) = dispatcher.feed(Protocol.tokenspeed(), [tick(Row("r", [8], "length", [-2.0]))]).ended
    assert isinstance(outputs, list)
    (output,) = outputs
    assert isinstance(output, Output)
    assert output.logprobs is not None
    token_ids, logprobs = np.asarray(output.token_ids), np.asarray(output.logprobs)
    assert token_ids.__array_interface__["data"][0] == output.token_ids.__array_interface__["data"][0]
    assert logprobs.__array_interface__["data"][0] == output.logprobs.__array_interface__["data"][0]
    assert (str(token_ids.dtype), str(logprobs.dtype)) == ("uint32", "float64")
    assert not token_ids.flags.writeable
    del output, outputs
    gc.collect()
    assert token_ids.tolist() == [*ids, 8]
    assert logprobs.tolist() == [-0.5, -1e-300, -3.141592653589793, -2.0]


def test_an_empty_column_is_an_empty_array() -> None:
    assert np.asarray(TokenIds()).shape == (0,)
