# Everything a developer runs. `make check` is what must be green before a change is handed over.
PYTHON ?= python3

.PHONY: check lint types test bench fuzz dist

check: lint types test

lint:
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types:
	$(PYTHON) -m mypy

test:
	$(PYTHON) -m pytest

# Ratios against openssl, cp and a plain loop, interleaved in one run, beside their targets.
bench:
	$(PYTHON) scripts/bench.py

# Mutated headers of every format; nothing but a clean error may come out.
fuzz:
	$(PYTHON) scripts/fuzz.py --mutations 100000

dist:
	rm -rf dist
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(PYTHON) -m build
