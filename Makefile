# Everything a developer runs. `make check` is what must be green before a change is handed over.
PYTHON ?= python3
JOBS ?= 2

.PHONY: check lint types test oracles families learn slow hints s3 cluster bench fuzz attack edits combinations faults flips dist man pyodide portable ignored address

check: lint types test

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:
	$(PYTHON) -m mypy

# What llama.cpp computes is compared where LLAMA_CPP_LIBRARY names its libraries: scripts/fetch_oracles.sh prints it.
test:
	$(PYTHON) -m pytest -n $(JOBS)

# The same with what a system without calls of POSIX, as Windows is one, is left with (ckconv/system/portable.py).
portable:
	CKCONV_PORTABLE=1 $(PYTHON) -m pytest -n $(JOBS)

# The same below a parent that ignores Ctrl-C, as a script's background job does.
ignored:
	(trap '' INT; $(PYTHON) -m pytest -n $(JOBS))

# What transformers and peft compute now, and the ids that llama.cpp makes. Needs torch, transformers, peft,
# mlx-embeddings, xllamacpp (whose wheel has libmtmd), WHISPER_CPP_LIBRARY
# (tests/test_whisper_live.py), LLAMA_CPP_LIBRARY, LLAMA_CPP_SOURCES and TOKENIZER_PACKAGES, which
# scripts/fetch_tokenizers.sh prints.
oracles:
	$(PYTHON) scripts/record_logits.py --check
	$(PYTHON) scripts/record_embeddings.py --check
	CKCONV_ORACLES=required $(PYTHON) -m pytest -m live

# Every case of every family, computed anew and compared with what is recorded; then the page about it. Needs what
# `make oracles` needs, mlx-lm, and LLAMA_CPP_SOURCES: llama.cpp's folder with convert_hf_to_gguf.py.
families:
	$(PYTHON) scripts/record_families.py --check
	$(PYTHON) scripts/families_page.py

# What takes long.
slow: learn hints fuzz attack edits combinations faults flips s3 pyodide cluster portable ignored

# Every hint of the package, on the input that it was given for: it leads on, or is listed with the reason why nobody
# can follow it (tests/hints_not_followed.tsv).
hints:
	$(PYTHON) scripts/hints.py

# Every family held out, learned from one pair of its cases, and tried on the others: right, or refused.
learn:
	CKCONV_LEARN=1 $(PYTHON) -m pytest -q tests/test_learn.py

# A source in S3: needs s3fs and moto[server].
s3:
	$(PYTHON) -m pytest -m s3 tests/test_remote_s3.py

# Clusters of Dask and Ray on this machine: needs distributed and ray[client].
cluster:
	$(PYTHON) -m pytest -m cluster tests/test_cluster.py

# ckconv under Node and, with docs/viewer, in a browser: npm's pyodide is fetched beside.
pyodide:
	npm install --silent --no-save --prefix .pyodide pyodide
	PYODIDE=$$PWD/.pyodide/node_modules/pyodide $(PYTHON) -m pytest tests/test_pyodide.py tests/test_viewer.py

# Ratios against openssl, cp, a plain loop and the programs that are installed, beside their targets, in 25 minutes.
bench:
	$(PYTHON) scripts/bench.py

# Mutated headers of every format; nothing but a clean error may come out.
fuzz:
	$(PYTHON) scripts/fuzz.py --mutations 100000

# Servers that lie, models that carry code, repositories that want to be run, planted links, another user and limits: what
# SECURITY.md promises. Then kill -9 at every call of --force, and losses of power: nothing that was there is lost.
attack:
	$(PYTHON) -m pytest -n $(JOBS) -m attack
	$(PYTHON) scripts/faults.py --all --force --kinds KILL
	$(PYTHON) scripts/powerloss.py --runs 500

# Edited configurations: refused, or right in the target's own program. Needs what `make oracles` needs, and mlx-lm.
edits:
	$(PYTHON) scripts/edits.py --edits 20000 --sample 2000 --jobs $(JOBS)

# Options in chance combinations over every recorded model: right, or refused. Then the rows of tests whose kinds other
# rows show in `make test` (tests/products.py), with what those need.
combinations:
	$(PYTHON) scripts/combinations.py --seconds 1800
	$(PYTHON) -m pytest -n $(JOBS) -m combinations

# Faults at every system call of a conversion; nothing may be mixed, and what is said must be true.
faults:
	$(PYTHON) scripts/faults.py --sample 8000

# Bits of outputs, one at a time: verify finds each.
flips:
	$(PYTHON) scripts/bitflips.py --flips 5000

dist:
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(PYTHON) -m build

# Another address of the project, everywhere: make address TO=github.com/OWNER/NAME
address:
	old=$$(sed -n 's|^Homepage = "https://\(.*\)"$$|\1|p' pyproject.toml) && \
	git grep -lF "$$old" | xargs sed -i "s|$$old|$(TO)|g"

# The manual page, from the parser.
man:
	$(PYTHON) scripts/manpage.py
