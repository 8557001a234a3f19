"""Record what ``transformers`` renders: ``python -m tests.prompts.record_templates``, from the root.

The models' tokenizers are read from ../shared/models.
"""

from __future__ import annotations

import msgspec

from .conversations import conversations
from .templates import DATA, MODELS, HuggingFace, Vectors


def main() -> None:
    for template in MODELS:
        reference = HuggingFace(template)
        prompts = {name: reference.render(each) for name, each in conversations(template).items()}
        vectors = Vectors(reference.version, reference.special_tokens, prompts)
        path = DATA / template / "vectors.json"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(vectors)) + b"\n")
        print(f"{template}: {len(prompts)} prompts of transformers {reference.version}")


if __name__ == "__main__":
    main()
