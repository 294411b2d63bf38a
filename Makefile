# kv3fs. `make` lists the targets.

GO      ?= go
PREFIX  ?= /usr/local
DESTDIR ?=
PYTHON  ?= python3
T       ?=
ARCH    ?= $(shell $(GO) env GOARCH)
export CGO_ENABLED ?= 0

# The commit, where Go's own stamp is missing (-buildvcs=false, a worktree).
COMMIT  := $(shell git describe --always --dirty --abbrev=40 --exclude='*' 2>/dev/null)
DATE    := $(shell git log -1 --format=%cI 2>/dev/null)
LDFLAGS := $(if $(COMMIT),-X main.commit=$(COMMIT) -X main.date=$(DATE))

.DEFAULT_GOAL := help
.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: need need-test
need:
	@scripts/need build
need-test:
	@scripts/need test

.PHONY: build
build: need ## build bin/kv3fs
	$(GO) build -ldflags "$(LDFLAGS)" -o bin/kv3fs ./cmd/kv3fs

.PHONY: reference
reference: build ## write docs/reference from the commands, metrics and API in the code
	bin/kv3fs manual reference docs/reference

.PHONY: manifests helm
helm: need ## build bin/helm, of the version of deploy/tools (minutes, the first time)
	cd deploy/tools && $(GO) build -o ../../bin/helm helm.sh/helm/v4/cmd/helm
manifests: helm ## write deploy/kubernetes from the Helm chart, and check the chart
	KV3FS_HELM=$(CURDIR)/bin/helm $(GO) test -count=1 -run TestRenderings ./internal/test/chart -update
	KV3FS_HELM=$(CURDIR)/bin/helm $(GO) test -count=1 ./internal/test/chart

.PHONY: demo
demo: build ## start a daemon, replay a generated trace, restart, replay again: all hits
	scripts/demo

.PHONY: check
check: need ## the fast checks: format, vet, build, lint, unit tests (under three minutes)
	scripts/check

.PHONY: test
test: need-test ## everything CI runs: check, race, C library, real mounts, fuzzing, demo (under 30 minutes)
	scripts/test

.PHONY: hosts-test
hosts-test: need-test ## several hosts over a real GlusterFS and a real CephFS, as root (some minutes; make nightly has it, too)
	@scripts/need hosts gluster
	@scripts/need hosts ceph
	KV3FS_HOSTS_TESTS='gluster ceph' KV3FS_REQUIRE_MOUNTS=1 $(GO) test -count=1 -v -timeout 30m ./internal/test/hosts

# HISTORIES=200 KV3FS_SEED=S makes the same choices again.
HISTORIES ?= 200
.PHONY: histories
histories: need-test ## 200 histories of three hosts whose page services, etcd and network fail (an hour; root; make nightly has it, too)
	KV3FS_HISTORIES=$(HISTORIES) KV3FS_REQUIRE_MOUNTS=1 $(GO) test -tags invariants -count=1 -timeout 300m -v -run 'TestManyHosts|TestFullEtcd' ./internal/test/pagehistory

.PHONY: lint
lint: need ## staticcheck and errcheck
	scripts/lint

.PHONY: fuzz
fuzz: need ## fuzz every decoder for T (default 30s) each
	scripts/fuzz $(or $(T),30s)

.PHONY: nightly
nightly: need-test ## everything long: fuzzing and soaks of T (default 5m) each, kills, random seeds; dist/nightly/report.md
	scripts/nightly $(or $(T),5m)

.PHONY: cross
cross: need ## build dist/kv3fs-linux-ARCH for another processor: ARCH=arm64
	GOARCH=$(ARCH) $(GO) build -trimpath -ldflags "-s -w $(LDFLAGS)" -o dist/kv3fs-linux-$(ARCH) ./cmd/kv3fs

.PHONY: release
release: need ## build dist/kv3fs-VERSION-linux-*.tar.gz and SHA256SUMS; TAG=v1.2.3 must match VERSION
	scripts/release $(TAG)

.PHONY: screenshots
screenshots: ## make the pictures of docs/dashboard.md, in Chromium
	@scripts/need screenshots
	KV3FS_SCREENSHOTS=$(CURDIR)/docs $(GO) test -count=1 -run TestScreenshots ./internal/admin/dashboard
	pngquant --force --ext .png --speed 1 --strip docs/dashboard-light.png docs/dashboard-dark.png

.PHONY: dist
dist: need ## all that a release has: archives, Debian and RPM packages, wheels, an OCI image, SBOMs, SHA256SUMS; TAG as for release
	scripts/dist $(TAG)

.PHONY: bench
bench: build ## the ring against the mount and plain I/O, on tmpfs and on disk
	bin/kv3fs bench ring --io buffered --scratch /dev/shm
	bin/kv3fs bench ring --io direct

.PHONY: bench-python
bench-python: build ## the Python client against the C library, on tmpfs
	$(MAKE) -s -C clients/c all tools
	$(PYTHON) clients/python/bench/bench.py

.PHONY: bench-pages
bench-pages: build ## the page service against a plain Python one
	bin/kv3fs bench pages

.PHONY: install
install: build install-unit ## install the binary, the C library and the unit file under PREFIX
	install -D -m 755 bin/kv3fs $(DESTDIR)$(PREFIX)/bin/kv3fs
	$(MAKE) -C clients/c install PREFIX=$(PREFIX) DESTDIR=$(DESTDIR)

# The unit starts the binary of this PREFIX. A configuration that is there stays; one at the place of former versions is copied.
.PHONY: install-unit
install-unit:
	install -d $(DESTDIR)$(PREFIX)/lib/systemd/system
	sed 's|/usr/local/bin/|$(PREFIX)/bin/|' deploy/kv3fs.service >$(DESTDIR)$(PREFIX)/lib/systemd/system/kv3fs.service
	sed 's|/usr/local/bin/|$(PREFIX)/bin/|' 'deploy/kv3fs-keep@.service' >'$(DESTDIR)$(PREFIX)/lib/systemd/system/kv3fs-keep@.service'
	@config=$(DESTDIR)/etc/kv3fs/kv3fs.yaml old=$(DESTDIR)/etc/kv3fs.yaml; \
	if [ ! -e $$config ] && [ -e $$old ]; then \
		install -d $(DESTDIR)/etc/kv3fs && cp -p $$old $$config && echo "copied $$old to $$config" >&2; \
	fi; \
	[ ! -e $$old ] || echo "kv3fs.service reads $$config; remove $$old, where former versions had it, after the next restart" >&2; \
	[ -e $$config ] || install -D -m 644 deploy/kv3fs.yaml $$config || \
		echo "kv3fs.service also needs $$config: as root, copy deploy/kv3fs.yaml there" >&2

.PHONY: wheel
wheel: ## build the Python package, library and all, into dist/
	@scripts/need wheel
	@$(MAKE) -s -C clients/python wheel

.PHONY: wheels sdist
wheels: ## build the Python package for x86-64 and aarch64 into dist/
	@scripts/need wheels
	@$(MAKE) -s -C clients/python wheels
sdist: ## build the Python package's source archive into dist/
	@$(MAKE) -s -C clients/python sdist

.PHONY: clean
clean: ## remove what was built
	rm -rf bin dist
	$(MAKE) -C clients/c clean
