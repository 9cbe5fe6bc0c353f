# book   everything: set up, execute the lessons, render both editions
# test   set up what tests need, run them
# gpu-check  real GPUs against virtual devices; fails where there is no GPU
# lab    JupyterLab on the notebooks
# serve  the book in a browser, made anew when a source changes
# clean  remove what was built; the environment in .venv stays

PYTHON ?= python3
BIN := .venv/bin

.PHONY: book test gpu-check lab serve clean

book: .venv/ready
	@$(BIN)/python -m book build

test: .venv/ready-for-tests
	@sh tools/install_browser.sh
	$(BIN)/python -m pytest

gpu-check: .venv/ready-for-tests
	@$(BIN)/python -c 'import sys, torch; sys.exit(0 if torch.cuda.is_available() else "make gpu-check: PyTorch sees no CUDA GPU here, so nothing can vouch")'
	$(BIN)/python -m pytest -m gpu -rs

lab: .venv/ready
	$(BIN)/jupyter lab notebooks

serve: .venv/ready
	@$(BIN)/python -m book serve

clean:
	rm -rf _build

.venv/ready: requirements.txt warm-kernel/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "The book needs Python 3.11 or newer; try: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --requirement requirements.txt
	@touch $@

.venv/ready-for-tests: .venv/ready tests/requirements.txt
	$(BIN)/python -m pip install --quiet --requirement tests/requirements.txt
	@touch $@
