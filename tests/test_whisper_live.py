"""What whisper.cpp computes of its file on one second of noise is what transformers computes of the checkpoint.

``WHISPER_CPP_LIBRARY`` names the folder of libwhisper.so and ggml's libraries: that of an unpacked wheel of
pywhispercpp (1.5.1 has whisper.cpp 1.8.5).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from whisper_cases import BLOCKS, in_blocks, save

from ckconv.api import convert
from ckconv.core.options import Options

LIBRARY = os.environ.get("WHISPER_CPP_LIBRARY", "")

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(not LIBRARY, reason="WHISPER_CPP_LIBRARY names no folder of libwhisper"),
]

#: Sizes with which the whole of 30 seconds is heard.
SIZES = {
    "d_model": 64, "encoder_ffn_dim": 256, "decoder_ffn_dim": 256, "encoder_layers": 2, "decoder_attention_heads": 2,
    "max_source_positions": 1500, "max_target_positions": 32, "max_length": 32,
}  # fmt: skip
TOKENS = [50258, 50259, 50359, 50363, 1, 2, 3]

#: In a process of its own: an assertion of ggml ends it.
HEAR = """
import ctypes, sys
import numpy as np
folder, model, out, *tokens = sys.argv[1:]
for name in ("ggml-base", "ggml-cpu", "ggml"):
    ctypes.CDLL(f"{folder}/lib{name}.so", mode=ctypes.RTLD_GLOBAL)
lib, void, number = ctypes.CDLL(f"{folder}/libwhisper.so"), ctypes.c_void_p, ctypes.c_int
lib.whisper_init_from_file.restype, lib.whisper_init_from_file.argtypes = void, [ctypes.c_char_p]
lib.whisper_pcm_to_mel.argtypes = [void, void, number, number]
lib.whisper_encode.argtypes = [void, number, number]
lib.whisper_decode.argtypes = [void, void, number, number, number]
lib.whisper_get_logits.restype, lib.whisper_get_logits.argtypes = ctypes.POINTER(ctypes.c_float), [void]
lib.whisper_n_vocab.argtypes = [void]
context = lib.whisper_init_from_file(model.encode())
assert context
noise, ids = np.load(out), np.array(tokens, np.int32)
assert lib.whisper_pcm_to_mel(context, noise.ctypes.data, len(noise), 1) == 0
assert lib.whisper_encode(context, 0, 1) == 0
assert lib.whisper_decode(context, ids.ctypes.data, len(ids), 0, 1) == 0
shape = len(ids), lib.whisper_n_vocab(context)
np.save(out, np.ctypeslib.as_array(lib.whisper_get_logits(context), shape)[-1])
"""


@pytest.mark.parametrize("case", ["multilingual-80-f16", "multilingual-128-f16", "english-80-f16"])
@pytest.mark.parametrize("kind", ["", *BLOCKS])
def test_logits_are_equal(kind: str, case: str, tmp_path: Path) -> None:
    """Of blocks, too: what whisper.cpp's quantize made of the file, decoded for transformers."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    source, out, said = save(tmp_path / "model", case, **SIZES), tmp_path / "out.bin", tmp_path / "said.npy"
    convert(source, out, to="whisper-ggml")
    if kind:
        out.write_bytes(in_blocks(out.read_bytes(), kind))
    convert(out, f"{tmp_path / 'back'}/", to="hf", options=Options(dequantize=bool(kind)))
    noise = (np.random.default_rng(0).standard_normal(16000) * 0.1).astype(np.float32)
    np.save(said, noise)

    subprocess.run([sys.executable, "-c", HEAR, LIBRARY, str(out), str(said), *map(str, TOKENS)], check=True)

    found = np.load(said)
    for folder in (tmp_path / "back",) if kind else (source, tmp_path / "back"):
        model = transformers.WhisperForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
        extractor = transformers.WhisperFeatureExtractor.from_pretrained(tmp_path / "back")
        heard = extractor(noise, sampling_rate=16000, return_tensors="pt").input_features
        with torch.no_grad():
            logits = model(input_features=heard, decoder_input_ids=torch.tensor([TOKENS])).logits[0, -1].numpy()
        # Keys, values and GELU are float16 in whisper.cpp, what blocks are multiplied with is rounded to 8 bits.
        assert np.abs(found - logits).max() < 0.02 * np.abs(logits).max()
        assert np.corrcoef(found, logits)[0, 1] > 0.9999
