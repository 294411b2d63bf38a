// Package chart renders the Helm chart with the real helm and compares what comes out with the files of deploy/kubernetes and with golden files. It contains
// only tests, which need a helm: KV3FS_HELM names it, and `make manifests` builds one and writes the files anew.
package chart
