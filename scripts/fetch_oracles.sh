#!/usr/bin/env bash
# llama.cpp's library, as built for the npm package @node-llama-cpp/linux-x64: nothing is compiled or run.
#   LLAMA_CPP_LIBRARY=$(scripts/fetch_oracles.sh [FOLDER])
# prints the folder of the libraries; FOLDER is .oracles unless said. The digest is that of the release.
set -euo pipefail
package=@node-llama-cpp/linux-x64 version=3.22.1
digest=sha512-5uCCDNqWCNfaAm8aR/Uzxbo4HBpKgNF91kCHPepKhgMgV2OAmatoefbOlMihsqCiH2Od35E/eUHQCFbfRBJuOg==
folder=${1:-.oracles}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
libraries=$folder/package/bins/linux-x64
if [ ! -f "$folder/$version" ]; then
  rm -rf "$folder/package"
  archive=$(cd "$folder" && npm pack --silent "$package@$version" | tail -n 1)
  found=sha512-$(openssl dgst -sha512 -binary "$folder/$archive" | base64 -w 0)
  if [ "$found" != "$digest" ]; then
    echo "$package@$version is $found, $digest was expected" >&2
    exit 1
  fi
  tar -xzf "$folder/$archive" -C "$folder"
  rm "$folder/$archive"
  touch "$folder/$version"
fi
echo "$libraries"
