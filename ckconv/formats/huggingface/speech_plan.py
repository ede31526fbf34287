"""Planning a checkpoint of a file that whisper.cpp loads: its header is the configuration."""

from __future__ import annotations

import json

from ckconv.families.schema import Family
from ckconv.families.speech import is_usual, speech_settings, speech_tensors
from ckconv.formats.huggingface.plan import HuggingFacePlanner


class SpeechPlanner(HuggingFacePlanner):
    """What the class of transformers loads, and how its extractor hears."""

    def _check_class(self, family: Family) -> None:
        """Every tensor that the converter writes is there, and no other: the class has the same."""
        assert self.config is not None
        scope = self.config.scope
        wanted = {name for name, _ in speech_tensors(scope["layers"], scope["encoder_layers"])}
        self.refuse_missing(dict.fromkeys(sorted(wanted - self.tensors.keys()), 1))
        if not is_usual(self.index.facts):
            self.refuse("its filters are not those of openai-whisper, which transformers computes anew")
        if not self.options.file_name:
            settings = speech_settings(scope["mels"])
            self.beside["preprocessor_config.json"] = (json.dumps(settings, indent=2, sort_keys=True) + "\n").encode()
