# What can be done in a checkout: `make` lists it. Everything generated lies in build/.

SHELL := /bin/bash
.SHELLFLAGS := -o errexit -o nounset -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules
.DELETE_ON_ERROR:

ROOT := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
LINK := .collections/ansible_collections/specdec/serving
TOOLCHAIN := PYTHONPATH=.collections python3 -m ansible_collections.specdec.serving.tests.support.toolchain
LAB := tests/support/lab/lab.py
export PATH := $(ROOT)/.venv/bin:$(PATH)

# cpu_engine: the real SGLang on CPU. stand_in: a server that speaks and logs like it, and starts in a moment.
ENGINE := cpu_engine
# Of tests and measurements: a number to repeat a run, how many races, which rows of the bench. Empty = as ever.
SEED := $(SPECDEC_SEED)
RACES := $(SPECDEC_RACES)
KILLS := $(SPECDEC_KILLS)
SWEEP_KILLS := $(SPECDEC_SWEEP_KILLS)
ROWS :=

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: $(LINK) ## deploy SGLang to a lab host on loopback and ask it something; ENGINE=cpu_engine (default) or stand_in
	@$(TOOLCHAIN).tiers demo --engine $(ENGINE)
	@printf -- '---\n# Written by make demo.\nsglang:\n  vars:\n    demo_engine: %s\n' $(ENGINE) >inventories/demo/local.yml
	ansible-playbook deploy.yml -l ct200
	ansible-playbook chat.yml -l ct200

.PHONY: test
test: $(LINK) ## run everything: lint, unit and integration tests, Molecule, the real engine; SEED= repeats
	@SPECDEC_SEED=$(SEED) $(TOOLCHAIN).tiers test

.PHONY: test-long
test-long: $(LINK) ## run what takes longer: tests marked as long, 1,000 restart races, 50 killed deployments, 20 killed sweeps, a minute of 10,000 log lines a second; SEED=, RACES=, KILLS= and SWEEP_KILLS= repeat or shorten
	@SPECDEC_SEED=$(SEED) SPECDEC_RACES=$(RACES) SPECDEC_KILLS=$(KILLS) SPECDEC_SWEEP_KILLS=$(SWEEP_KILLS) $(TOOLCHAIN).tiers long

.PHONY: bench
bench: $(LINK) ## measure lags, CPU, deployments, sweeps and false verdicts beside the usual ways; SEED=, RACES=, ROWS="ID..."
	@$(TOOLCHAIN).tiers bench
	@PYTHONPATH=.collections python -m ansible_collections.specdec.serving.tests.performance.bench \
	  $(if $(SEED),--seed $(SEED)) $(if $(RACES),--races $(RACES)) $(if $(ROWS),--rows $(ROWS))

.PHONY: matrix
matrix: $(LINK) ## put every fault through the real wait and print one table; ROWS="NAME..." chooses, SLOW=--slow adds
	@PYTHONPATH=.collections python3 -m ansible_collections.specdec.serving.tests.support.fault_matrix $(SLOW) $(ROWS)

.PHONY: lint
lint: $(LINK) ## check style, types, documentation and Ansible's own rules
	@$(TOOLCHAIN).tiers lint

.PHONY: test-unit
test-unit: $(LINK) ## run the unit tests, target-side ones on Python 3.9 as well
	@$(TOOLCHAIN).tiers unit

.PHONY: test-integration
test-integration: $(LINK) ## run the tests on lab hosts
	@$(TOOLCHAIN).tiers integration

.PHONY: molecule
molecule: $(LINK) ## run the Molecule scenarios
	@$(TOOLCHAIN).tiers molecule

.PHONY: venv
venv: $(LINK) ## make the environment (.venv) from requirements/*.txt; nothing to do when unchanged
	@$(TOOLCHAIN).environments .venv

.PHONY: hosts
hosts: ## make the demo's hosts, ct200 and b300, and their part of the demo inventory
	@$(LAB) up ct200 b300 --inventory inventories/demo/lab.yml

.PHONY: wheelhouse
wheelhouse: $(LINK) ## make the wheelhouses of both engines
	@python3 tests/support/stand_in/build.py
	@python3 tests/support/cpu_engine/build.py wheelhouse

.PHONY: models
models: wheelhouse ## make the tiny models of the real engine
	@python3 tests/support/cpu_engine/build.py models

.PHONY: down
down: ## remove this checkout's lab hosts; what was downloaded and built stays
	@$(LAB) down

.PHONY: clean
clean: ## remove this checkout's lab hosts and everything generated
	@if [ -e build/lab ]; then $(LAB) down; fi
	@rm -rf build .venv .venv-py39 inventories/demo/lab.yml inventories/demo/local.yml molecule/*/inventory/lab.yml

# Archives of the source leave the link out (.gitattributes).
$(LINK):
	@mkdir -p $(@D) && ln -sfn ../../.. $@
