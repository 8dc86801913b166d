# What can be done in a checkout: `make` lists it. Everything generated lies in build/.

SHELL := /bin/bash
.SHELLFLAGS := -o errexit -o nounset -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory --no-builtin-rules
.DELETE_ON_ERROR:

ROOT := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
LINK := .collections/ansible_collections/specdec/serving
TOOLCHAIN := PYTHONPATH=.collections python3 -m ansible_collections.specdec.serving.tests.support.toolchain
export PATH := $(ROOT)/.venv/bin:$(PATH)

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-18s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: venv
venv: $(LINK) ## make the environment (.venv) from requirements/*.txt; nothing to do when unchanged
	@$(TOOLCHAIN).environments .venv

.PHONY: lint
lint: $(LINK) ## check style, types, documentation and Ansible's own rules
	@$(TOOLCHAIN).tiers lint

.PHONY: test-unit
test-unit: $(LINK) ## run the unit tests, target-side ones on Python 3.9 as well
	@$(TOOLCHAIN).tiers unit

# Archives of the source leave the link out (.gitattributes).
$(LINK):
	@mkdir -p $(@D) && ln -sfn ../../.. $@
