# Every task a person does. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
# For the Kubernetes in go.mod.
CONTROLLER_GEN := sigs.k8s.io/controller-tools/cmd/controller-gen@v0.20.1
KWOK        := v0.8.0
VALE        := github.com/errata-ai/vale/v3/cmd/vale@v3.18.0
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
GO_LICENSES := github.com/google/go-licenses@v1.6.0
VENV        := predictor/.venv
BOX         := bin/box
SEED        ?= 1
NODES       ?= 1
COMMIT      := $(shell git describe --always --dirty 2>/dev/null || echo unknown)

# All of the box except Kubernetes and CoreDNS themselves, which have no tests here.
BOX_PACKAGES := ./apt/... ./build/... ./cluster/... ./cmd/... ./image/... ./layout/... ./machine/... ./stack/... ./versions/...

# A module of its own, because it includes Kubernetes.
SCHEDULER := activator-plugin/placement/scheduler

export CGO_ENABLED ?= 0
# As images are built: everything else without cgo and the race detector then shares one compilation with them.
export GOFLAGS := -trimpath -gcflags=all=-dwarf=false $(GOFLAGS)
export PATH := $(CURDIR)/bin:$(PATH)

# Measurements must not share the cores with compilers.
.NOTPARALLEL:

.PHONY: help
help: ## List the targets.
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-17s %s\n", $$1, $$2} /^##@ / {printf "\n%s\n", substr($$0, 5)}' $(MAKEFILE_LIST)

##@ See it

.PHONY: demo
ifdef CLUSTER
demo: images-to-push bin/demo ## Compare stock Knative, Libra and no limits on the box, with a table and a report (9 min); CLUSTER=<context> IMAGES=<repo> for another cluster, DEMO=--help for options.
	bin/demo run $(ON_CLUSTER) --out out/demo $(DEMO)
else
demo: box-up bin/demo
	$(BOX) load --out out/images.json
	bin/demo run $(ON_BOX) --out out/demo $(DEMO)
endif

ON_CLUSTER = --context "$(CLUSTER)" --push-to "$(IMAGES)" --box $(BOX) --seed $(SEED) --commit $(COMMIT)

.PHONY: images-to-push
images-to-push: $(BOX)
	@test -n "$(IMAGES)" || { echo "CLUSTER=$(CLUSTER) needs IMAGES=<repo>: a registry repository that you may push to and the cluster may pull from"; exit 2; }
	$(BOX) build --images

##@ The box: a real Kubernetes with Knative, Istio and KServe on this machine

.PHONY: box-build box-up box-down box-status box-logs
box-build: $(BOX) ## Build or fetch everything that runs on the box (half an hour the first time).
	$(BOX) build

box-up: box-build ## Start the box and install Knative, Istio and KServe on it; NODES=3 for two workers beside its node.
	$(BOX) up --nodes $(NODES)

box-down: $(BOX) ## Stop the box and remove everything it made.
	$(BOX) down

box-status: $(BOX) ## Show what runs, what is not ready, and where things are.
	$(BOX) status

box-logs: $(BOX) ## Show the log of a part: make box-logs C=kubelet, and of a worker's with NODE=w1
	@test -n "$(C)" || { $(BOX) logs --help; exit 2; }
	$(BOX) logs $(C) $(if $(NODE),--node $(NODE))

##@ Check it

.PHONY: test lint unit cgroup-v2-test predictor-test e2e
test: lint box-build unit cgroup-v2-test predictor-test e2e ## Everything that CI runs: linters, unit, integration and end-to-end tests.

lint: $(VENV)/.stamp ## Linters: Go, Python, and the English of the docs.
	@bad=$$(gofmt -l activator-plugin dashboards docs manifests pkg resizer loadtest); test -z "$$bad" || { echo "not gofmt-ed: $$bad"; exit 1; }
	go vet ./... && go vet -tags e2e,skew,install ./loadtest/e2e/... ./loadtest/skew/... ./loadtest/install/...
	go run $(STATICCHECK) -tags e2e,skew,install ./...
	@: Go passes over a folder whose name begins so.
	@rm -rf out/_generated && mkdir -p out && go run $(CONTROLLER_GEN) object paths=./pkg/api/... output:dir=out/_generated crd paths=./pkg/api/... output:crd:dir=out/_generated && \
	  diff out/_generated/zz_generated.deepcopy.go pkg/api/v1alpha1/ && diff <(cd out/_generated && ls *.yaml) <(cd manifests/base/crds && ls libra.dev_*.yaml) && ( for crd in out/_generated/*.yaml; do diff $$crd manifests/base/crds/ || exit 1; done ) || { echo "not as their types say: make generate"; exit 1; }
	cd loadtest/box && go vet $(BOX_PACKAGES) && go run $(STATICCHECK) $(BOX_PACKAGES)
	cd loadtest/box/dns && go vet ./...
	cd $(SCHEDULER) && go vet -tags bench ./... && go run $(STATICCHECK) -tags bench ./...
	CGO_ENABLED=1 go run $(VALE) *.md docs/*.md docs/reference/*.md
	cd predictor && .venv/bin/ruff check . && .venv/bin/ruff format --check . && .venv/bin/mypy

unit: deps ## Go tests, of all that is deployed with the race detector; a real Redis where one is needed, and a real API server if the box is built.
	CGO_ENABLED=1 go test -race $(TESTS) -p 2 -timeout 20m ./activator-plugin/... ./pkg/... ./resizer/...
	@: The rest as it is built: the race detector would have hundreds of packages compiled once more.
	go test $(TESTS) -p 2 -timeout 20m ./dashboards/... ./docs/... ./loadtest/... ./manifests/...
	cd loadtest/box && go test $(TESTS) -p 2 $(BOX_PACKAGES)
	cd $(SCHEDULER) && go test $(TESTS) ./...

# What vet says is lint's.
TESTS = -vet=off -shuffle=on

cgroup-v2-test: bin/vmlinuz bin/brd.ko ## Tests of cgroups, pressure and the agent on a real cgroup v2, in an emulated virtual machine (a minute).
	go run ./resizer/cgroup/vmtest -kernel bin/vmlinuz -module "bin/brd.ko rd_nr=1 rd_size=131072" ./resizer/cgroup ./resizer/pressure ./resizer/agent

predictor-test: $(VENV)/.stamp ## Tests of the predictor, with a real Redis and a real server.
	cd predictor && .venv/bin/pytest

e2e: box-build bin/demo ## End-to-end test on a box of its own: a demo; then, with TLS and users in Redis, resizes under load, memory beyond the limit, faults, opt-out; NODES=3 also runs those for several nodes.
	$(BOX) down
	$(BOX) up --nodes $(NODES)
	$(BOX) load --with scheduler --out out/images.json
	bin/demo run $(ON_BOX) --limit 5m --out out/e2e
	$(FUNCTIONS_OF_TESTS) --redis-auth
	go test -tags e2e -count=1 -timeout 40m -v ./loadtest/e2e/... -args -kubeconfig "$$($(BOX) kubeconfig)" -images "$(CURDIR)/out/images.json" -results "$(CURDIR)/out/e2e/results.json" -box "$(CURDIR)/$(BOX)"
	$(BOX) down
	$(BOX) down

.PHONY: install-test shipped-test helm-test same-release-test
install-test: box-build ## Install a release from a registry on a box with stock Knative, look at it, use it and remove it, by the commands of docs/install.md; break what it needs; and show all that ships to that API server (20 min). WITHOUT=kserve runs only the commands, on a box without KServe; INGRESS=kourier with it, on one with Kourier in place of Istio.
	$(BOX) down
	$(BOX) up $(VARIANT)
	$(BOX) load --out out/images.json
	rm -f $(INSTALL_OUT)/results.json
	go test -tags install -count=1 -timeout 40m -v -run 'TestAStranger$(if $(VARIANT),,|TestBrokenPreconditions)' ./loadtest/install -args $(INSTALLS) $(VARIANT) -out "$(CURDIR)/$(INSTALL_OUT)"
	$(if $(VARIANT),,go test -count=1 -timeout 10m -v -run TestAPIServerAcceptsAllThatShips ./manifests/dist -args -cluster "$$($(BOX) kubeconfig)" -results "$(CURDIR)/$(INSTALL_OUT)/results.json")
	$(BOX) down

# Flags of both the box and the test.
VARIANT := $(strip $(if $(WITHOUT),--without $(WITHOUT)) $(if $(INGRESS),--ingress $(INGRESS)))
INSTALL_OUT = out/install-test$(if $(WITHOUT),-without-$(WITHOUT))$(if $(INGRESS),-$(INGRESS))

shipped-test: box-build ## Delete the files of a release on the box under load, in several orders, and apply the stock activator over Libra's (25 min).
	$(BOX) down
	$(BOX) up
	$(BOX) load --out out/images.json
	go test -tags install -count=1 -timeout 60m -v -run TestNothingShipped ./loadtest/install -args $(INSTALLS) -out "$(CURDIR)/out/install-test"
	$(BOX) down

helm-test: box-build ## Install, upgrade and remove the chart of a release on a box under load, by the Helm commands of docs/install.md (10 min).
	$(BOX) down
	$(BOX) up
	$(BOX) load --out out/images.json
	go test -tags install -count=1 -timeout 40m -v -run TestChart ./loadtest/install -args $(INSTALLS) -helm "$$($(BOX) path helm)" -out "$(CURDIR)/out/helm-test"
	$(BOX) down

same-release-test: ## Build the images of a release for both architectures twice, with nothing in common: the digests must be the same (30 min).
	go test -tags install -count=1 -timeout 60m -v -run TestReleasesAreTheSame ./loadtest/install -args -out "$(CURDIR)/out/install-test"

INSTALLS = -kubeconfig "$$($(BOX) kubeconfig)" -box "$(CURDIR)/$(BOX)" -functions "$(CURDIR)/out/images.json" -kubelite "$$($(BOX) path kubelite)"

##@ Measure it

.PHONY: evaluate
ifeq ($(NODES),1)
evaluate: box-up bin/demo ## Compare stock, no CPU limits, VPA and Libra on ten functions, with a report (two hours); QUICK=1 for a quick look (15 min), ABLATIONS=1 for Libra without some of its parts, NODES=3 for which pod gets a request, EVALUATE=--help for options.
	$(BOX) load $(if $(QUICK)$(ABLATIONS),,--with vpa) --out out/images.json
	bin/demo evaluate $(ON_BOX) --out out/evaluate$(if $(ABLATIONS),-ablations) $(if $(QUICK),--quick) $(if $(ABLATIONS),--ablations) $(EVALUATE)
else
ifdef ABLATIONS
$(error ABLATIONS=1 is of one node: leave NODES out)
endif
evaluate: box-up bin/demo
	$(BOX) load --out out/images.json
	bin/demo evaluate-nodes $(ON_BOX) --out out/evaluate-nodes $(if $(QUICK),--quick) $(EVALUATE)
endif

.PHONY: bench-predictor
bench-predictor: deps $(VENV)/.stamp-bench ## Measure how right and how fast the predictor is, on functions really run (half an hour the first time); BENCH=--help for options.
	cd predictor && .venv/bin/python -m bench $(BENCH)

.PHONY: bench-predictor-functions
bench-predictor-functions: deps $(VENV)/.stamp-bench ## Measure what 10,000 functions cost Redis and the predictor, as they ship (5 min, and 8 more the first time); BENCH=--help for options.
	cd predictor && .venv/bin/python -m bench.functions $(BENCH)

.PHONY: bench-pool
bench-pool: bin/bench-pool deps ## Measure Begin and End in the pools of 1, 100, 1,000 and 2,000 nodes, on one Redis core and with the memory that ships (15 min); BENCH=--quick for a smoke test, BENCH=--help for options.
	$< --seed $(SEED) --commit $(COMMIT) $(BENCH)

.PHONY: bench-place
bench-place: bin/bench-place bin/bench-pool box-build deps ## Measure how long each policy takes to choose a request's pod among 1,000 nodes; what the picture behind the choice costs Redis, how old it is, and how much of what it promises four activators' requests get; and how soon an edit of a policy is in force (5 min). BENCH=--quick for a smoke test, BENCH=--help for options.
	$< --kubelite "$$($(BOX) path kubelite)" --seed $(SEED) --commit $(COMMIT) $(BENCH)

.PHONY: bench-scheduler
bench-scheduler: box-build deps ## Measure how fast Libra's profile and a stock one of the same scheduler place pods on 1,000 nodes, in turn (5 min); BENCH="-nodes=100 -blocks=6" for a smoke test.
	cd $(SCHEDULER) && bash -o pipefail -c 'go test -tags bench -count=1 -timeout 1h -v -run TestThroughput . -args -seed $(SEED) -commit $(COMMIT) -out $(CURDIR)/out/bench-scheduler $(BENCH) 2>&1 | grep -v "^[IEW][0-9]"'

BASE ?= origin/main

.PHONY: bench-pool-compare
bench-pool-compare: bin/bench-pool deps ## Compare the pool of another commit with this one's, in turn (7 min); BASE=origin/main, or a commit without one trick; BENCH=--help for options.
	rm -rf out/base && mkdir -p out/base && git archive $(BASE) | tar -x -C out/base
	cd out/base && go build -o ../bench-pool-base ./loadtest/bench/pool
	$< compare --with base=out/bench-pool-base --seed $(SEED) --commit $(COMMIT) $(BENCH)

.PHONY: skew-test
skew-test: deps ## Run another commit's parts of the pool beside this one's on one Redis, under load, there and back (1 min); BASE=origin/main, or HEAD~1 if that is this one.
	go test -tags skew -count=1 -v -run TestSkew ./loadtest/skew -base $(BASE)

.PHONY: upgrade-test base-tree
upgrade-test: base-tree box-build ## Upgrade another commit's release on a box to this one's, and back, under load, by the commands of docs/install.md (10 min); BASE=origin/main, or HEAD~1 if that is this one.
	$(BOX) down
	$(BOX) up
	$(BOX) load --out out/images.json
	go test -tags install -count=1 -timeout 40m -v -run TestUpgradeAndBack ./loadtest/install -args $(INSTALLS) -base "$(CURDIR)/out/base" -out "$(CURDIR)/out/upgrade-test"
	$(BOX) down

# A commit that has this file can make a release with today's commands.
RELEASED := manifests/dist/krew.go

base-tree:
	@git cat-file -e "$(BASE):$(RELEASED)" 2>/dev/null || { echo "BASE=$(BASE) is not a commit with make release: want $$(git log --diff-filter=A --format='%h (%s)' -- $(RELEASED)) or a later one, as HEAD~1"; exit 2; }
	rm -rf out/base && mkdir -p out/base && git archive "$(BASE)" | tar -x -C out/base

.PHONY: bench-resizer
bench-resizer: bin/bench-resizer bin/libra-resizer bin/libra-agent bin/kwok-$(KWOK)/kwok box-build deps ## Measure the controller on KWOK's 1,000 nodes and 50,000 pods, killed leaders, and the agent of a full node (20 min, root); BENCH=--quick for a smoke test (3 min), BENCH=--help for options.
	$< --kubelite "$$($(BOX) path kubelite)" --kwok bin/kwok-$(KWOK)/kwok --controller bin/libra-resizer --agent bin/libra-agent --seed $(SEED) --commit $(COMMIT) $(BENCH)

.PHONY: chaos
chaos: box-up bin/demo bin/chaos ## Break each part under load on the box, alone and in pairs, under both sources (half an hour); NODES=3 for two workers, CHAOS="--source node --only redis-kill" for some faults, bin/chaos --help for options.
	$(BOX) load --out out/images.json
	$(FUNCTIONS_OF_TESTS)
	bin/chaos $(ON_BOX) --nodes $(NODES) $(CHAOS)

.PHONY: node-test
node-test: box-build bin/node-test ## Test Libra on emulated nodes with systemd, cgroup v2 and kubelets of two releases, and what is done to such nodes (25 min); NODE=--help for options.
	bin/node-test run --box $(BOX) $(NODE)

.PHONY: bench-activator bench-resize bench-safeguard box-libra
bench-activator: bin/bench-activator box-libra ## Compare Libra's activator with the stock one, interleaved (15 min); BENCH=--quick for a smoke test, BENCH=--help for options.
	$< $(ON_BOX) $(BENCH)

bench-resize: bin/bench-resize box-libra ## Measure the time from the intent to the limit in the cgroup, by the API and by the node agent; BENCH=--quick, BENCH=--help.
	$< $(ON_BOX) $(BENCH)

bench-safeguard: bin/bench-safeguard box-libra ## Measure the time from usage at the threshold, and from a donor's end, to the restored limit; BENCH=--quick, BENCH=--help.
	$< $(ON_BOX) $(BENCH)

ON_BOX = --kubeconfig "$$($(BOX) kubeconfig)" --images out/images.json --seed $(SEED) --commit $(COMMIT)

# The functions that end-to-end tests and chaos break: in the namespace default, behind Libra's
# activator, and learned by Libra.
FUNCTIONS_OF_TESTS = bin/demo install --activator --functions --kubeconfig "$$($(BOX) kubeconfig)" --images out/images.json

box-libra: box-up bin/demo
	$(BOX) load --out out/images.json
	bin/demo install --kubeconfig "$$($(BOX) kubeconfig)" --images out/images.json

##@ Release it

# Where the plugin's archives will be uploaded.
DOWNLOADS ?= https://libra.dev/releases/$(VERSION)

.PHONY: release
release: $(BOX) bin/dist ## Write images for amd64 and arm64, the files that install them, the plugin and checksums to dist/; REGISTRY=<repository> VERSION=0.1.0, PUSH=1 to push the images, SIGN=<command> to sign the checksums.
	@test -n "$(REGISTRY)" || { echo "make release needs REGISTRY=<repository>: where clusters will pull the images from, as registry.example/libra"; exit 2; }
	@test -n "$(VERSION)" || { echo "make release needs VERSION=<version>, as 0.1.0"; exit 2; }
	rm -rf dist
	$(BOX) release --registry "$(REGISTRY)" --version "$(VERSION)" --arch amd64,arm64 --out dist $(if $(PUSH),--push)
	bin/dist --version "$(VERSION)" --downloads "$(DOWNLOADS)" --out dist --images dist/images.json --components dist/components.json
	$(if $(SIGN),cd dist && $(SIGN) SHA256SUMS)

.PHONY: audit licences
audit: out/audit/.stamp ## Look for known vulnerabilities in what Libra is built from, in the Go database and PyPI: not in CI, as both are online.
	GOBIN="$(CURDIR)/bin" go install $(GOVULNCHECK)
	bin/govulncheck ./...
	cd $(SCHEDULER) && "$(CURDIR)/bin/govulncheck" ./...
	@: Without --strict it passes over what PyPI does not tell of.
	out/audit/bin/pip-audit --strict --disable-pip --no-deps --requirement predictor/requirements.lock

# Licences that neither forbid a use nor ask for our sources.
LICENCES_GO     := Apache-2.0,BSD-2-Clause,BSD-3-Clause,ISC,MIT,MPL-2.0
LICENCES_PYTHON := 0BSD;Apache;BSD;CC0;MIT;MPL;Mozilla Public License 2.0;PSF;Python Software Foundation;Zlib

licences: out/audit/.stamp $(VENV)/.stamp ## Check that everything in a release has a licence that permits shipping it (2 min).
	@: It tells the standard library by GOROOT.
	export GOROOT="$$(go env GOROOT)" && go run $(GO_LICENSES) check ./activator-plugin/cmd/... ./resizer/cmd/... ./pkg/kubectl/cmd/... --ignore libra.dev/libra --allowed_licenses=$(LICENCES_GO) && \
	  cd $(SCHEDULER) && go run $(GO_LICENSES) check ./cmd/... --ignore libra.dev/libra --allowed_licenses=$(LICENCES_GO)
	out/audit/bin/pip-licenses --python $(VENV)/bin/python --from=mixed --partial-match --allow-only "$(LICENCES_PYTHON)"

out/audit/.stamp:
	python3.11 -m venv out/audit
	out/audit/bin/pip install --quiet --disable-pip-version-check pip-audit==2.10.1 pip-licenses==5.5.5
	@touch $@

##@ Build it

.PHONY: build clean deps generate FORCE
build: bin/box bin/demo bin/libra-scheduler ## Build the command-line tools into bin/.
	go build ./...

generate: ## Generate what follows from the sources: definitions and copies of Libra's own objects, and docs/reference.
	go run $(CONTROLLER_GEN) object crd paths=./pkg/api/... output:crd:dir=manifests/base/crds
	go test ./docs ./dashboards ./manifests/dist -run Reference -update

bin/tapp: FORCE
	@mkdir -p bin && go build -o bin/tapp ./activator-plugin/cmd/tapp

bin/libra-scheduler: FORCE
	@mkdir -p bin && cd $(SCHEDULER) && go build -ldflags "-s -w" -o ../../../bin/libra-scheduler ./cmd/libra-scheduler

bin/box: FORCE
	@mkdir -p bin && cd loadtest/box && go build -o ../../bin/box ./cmd/box

bin/chaos: FORCE
	@mkdir -p bin && go build -o bin/chaos ./loadtest/chaos

bin/bench-%: FORCE
	@mkdir -p bin && go build -o $@ ./loadtest/bench/$*

bin/node-test: FORCE
	@mkdir -p bin && go build -o bin/node-test ./loadtest/nodetest

# Built as for their images.
bin/libra-resizer bin/libra-agent: bin/libra-%: FORCE
	@mkdir -p bin && go build -ldflags "-s -w" -o $@ ./resizer/cmd/$(if $(filter agent,$*),agent,controller)

bin/kwok-$(KWOK)/kwok:
	GOBIN=$(CURDIR)/$(@D) go install -ldflags "-s -w" sigs.k8s.io/kwok/cmd/kwok@$(KWOK)

bin/dist: FORCE
	@mkdir -p bin && go build -o bin/dist ./manifests/dist/cmd/dist

bin/demo: FORCE
	@mkdir -p bin && go build -o bin/demo ./loadtest/demo

FORCE:

# Debian's redis-server package starts a server on every boot. redis-tools has the same binary
# under another name, and the binary does what the name that it is called by says.
deps:
	@missing=; \
	command -v gcc >/dev/null || missing="$$missing gcc libc6-dev"; \
	command -v redis-server >/dev/null || command -v redis-check-rdb >/dev/null || missing="$$missing redis-tools"; \
	command -v qemu-system-x86_64 >/dev/null || missing="$$missing qemu-system-x86"; \
	python3.11 -c 'import ensurepip' 2>/dev/null || missing="$$missing python3.11 python3.11-venv"; \
	if [ -n "$$missing" ]; then echo "installing$$missing"; apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing >/dev/null; fi; \
	mkdir -p bin; command -v redis-server >/dev/null || ln -s "$$(command -v redis-check-rdb)" bin/redis-server

# Debian's cloud kernel boots without modules and without installation. A disk needs a module (a
# file on a disk, unlike one in an initramfs, can be dropped from memory).
bin/vmlinuz bin/brd.ko &: | deps
	@rm -rf bin/kernel; mkdir -p bin/kernel; cd bin/kernel; \
	named() { apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image-/ {print $$2; exit}'; }; \
	package=$$(named); test -n "$$package" || { apt-get update -qq; package=$$(named); }; \
	echo "unpacking $$package"; apt-get download -qq "$$package" 2>/dev/null || { apt-get update -qq; apt-get download -qq "$$(named)"; }; \
	dpkg-deb --fsys-tarfile ./*.deb | tar -x --wildcards './boot/vmlinuz-*' '*/brd.ko'
	@mv bin/kernel/boot/vmlinuz-* bin/vmlinuz; mv bin/kernel/lib/modules/*/kernel/drivers/block/brd.ko bin/brd.ko; rm -r bin/kernel

$(VENV)/.stamp: predictor/requirements.lock predictor/requirements-dev.lock | deps
	python3.11 -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r predictor/requirements.lock -r predictor/requirements-dev.lock
	@touch $@

$(VENV)/.stamp-bench: predictor/requirements-bench.lock | $(VENV)/.stamp
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps -r predictor/requirements-bench.lock
	$(VENV)/bin/pip check
	@touch $@

clean: ## Remove what make built here (not the box: see box-down).
	rm -rf bin out $(VENV)
