"""Record what transformers computes of decoded blocks, for tests of bump files that run without torch.

    python scripts/record_quantized_models.py           write fixtures/logits/quantised_models.npz anew
    python scripts/record_quantized_models.py --check   compute again and compare

Models, their blocks and what they decode to are of ``tests/quantized_models.py``; nothing of ckconv is used.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from kept_arrays import moved  # noqa: E402
from quantized_models import MODELS, PROMPT, Quantized  # noqa: E402

ARRAYS = ROOT / "fixtures" / "logits" / "quantised_models.npz"

#: What two machines may differ by.
TOLERANCE = 1e-5

CLASSES: dict[str, tuple[Any, Any]] = {
    "glm4": (transformers.Glm4Config, transformers.Glm4ForCausalLM),
    "nemotron_h": (transformers.NemotronHConfig, transformers.NemotronHForCausalLM),
    "qwen35": (transformers.Qwen3_5TextConfig, transformers.Qwen3_5ForCausalLM),
}


def logits(made: Quantized) -> np.ndarray:
    """``[positions, vocabulary]``."""
    config_class, model_class = CLASSES[made.arch]
    model = model_class(config_class(**made.config()))
    model.load_state_dict({name: torch.from_numpy(array) for name, array in made.state().items()}, strict=True)
    with torch.no_grad():
        found = model.eval()(input_ids=torch.tensor([PROMPT]), use_cache=False).logits
    return np.asarray(found[0].numpy())


def main() -> int:
    """Run from the command line; 1 if a number moved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    arrays = {name: logits(made) for name, made in MODELS.items()}
    if asked.check:
        return moved(arrays, ARRAYS, TOLERANCE)
    np.savez_compressed(ARRAYS, **arrays)  # type: ignore[arg-type]
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
