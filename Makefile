# book   everything: set up, execute the lessons, render both editions
# test   set up what tests need, run them all
# test-fast  the tests of single functions and of the engine, without the lessons and the site
# gpu-check  real GPUs against virtual devices; fails where there is no GPU
# lab    JupyterLab on the notebooks; the first time installs it
# serve  the book in a browser, made anew when a source changes
# print  each edition as EPUB and PDF, which the site's first page then offers
# lock   pin anew what the pinned packages need: after a change in requirements.txt or pyproject.toml
# clean  remove all that was made: the site, the runs, and what lessons need not be executed again for; .venv stays

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements.lock

.PHONY: book test test-fast gpu-check lab serve print lock clean

book: .venv/ready
	@$(BIN)/python -m book build

test: .venv/ready-for-tests
	@sh tools/install_browser.sh fonts-liberation fonts-noto-cjk g++ firefox-esr
	$(BIN)/python -m pytest

test-fast: .venv/ready-for-tests
	$(BIN)/python -m pytest tests/unit tests/engine

gpu-check: .venv/ready-for-tests
	@$(BIN)/python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "make gpu-check: PyTorch sees no CUDA GPU here, so nothing can vouch")'
	$(BIN)/python -m pytest -m gpu -rs

lab: .venv/ready-for-lab
	$(BIN)/jupyter lab notebooks

serve: .venv/ready
	@$(BIN)/python -m book serve

print: .venv/ready-for-tests
	@sh tools/install_browser.sh fonts-liberation fonts-noto-cjk
	@$(BIN)/python -m book execute
	@$(BIN)/python -m tools.print_book
	@$(BIN)/python -m book render

# Without what PyTorch needs for CUDA: each build of it names that itself.
lock: | $(BIN)/python
	@$(INSTALL) uv
	@mkdir -p _build
	@$(BIN)/uv pip compile --quiet --no-cache --universal --python-version 3.11 --all-extras --no-header --no-annotate \
		pyproject.toml warm-kernel/pyproject.toml >_build/lock.txt
	@echo '# Written by make lock: what the packages of requirements.txt and pyproject.toml need, on all systems.' >requirements.lock
	@grep -vE '^(cuda|nvidia|triton)\b' _build/lock.txt >>requirements.lock

clean:
	rm -rf _build

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "The book needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	@$(PYTHON) -m venv .venv

.venv/ready: requirements.txt requirements.lock pyproject.toml warm-kernel/pyproject.toml | $(BIN)/python
	@echo "Installing into .venv what the book needs; the first time this takes minutes."
	@$(INSTALL) --editable . --editable ./warm-kernel
	@touch $@

.venv/ready-for-tests: .venv/ready simulated-gpus/pyproject.toml
	@$(INSTALL) --editable '.[test]' --editable ./simulated-gpus
	@touch $@

.venv/ready-for-lab: .venv/ready
	@$(INSTALL) --editable '.[lab]'
	@touch $@
